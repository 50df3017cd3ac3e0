"""The texts of chess that are one token each: a man on its square, the parts of a move, a number.

A position's text does not name the pieces' squares: they follow from the places of its characters. So a position is
respelt first, ``4 k 3 / 8 / ...   w   -   -`` as ``ke8 ...   w   -   -``: each man with its square, rank 8 first.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any

from lmrl.envs.chess.env import spaced_san
from lmrl.envs.task import TaskTokens

__all__ = ["MEN_ON_SQUARES", "clock_parts", "men_parts", "move_parts", "tokens"]

_FILES = "abcdefgh"
_RANKS = "12345678"
_SQUARES = tuple(map("".join, product(_FILES, _RANKS)))

# A line of a position holds its board before the side to move; no move has that, so the digits of a move stay.
_EMPTY = tuple((rf"{n}(?=[^\n]*   [wb]   )", " ".join("." * n)) for n in range(1, 9))
# After a man's letter, by how many squares follow up to the end of its rank, and then by how many ranks.
_FILE = tuple(
    (rf"(?<=[A-Za-z]) (?=(?:[^/ \n]+ ){{{7 - i}}}(?:/|  [wb]   ))", f"{file} ") for i, file in enumerate(_FILES)
)
_RANK = tuple(
    (rf"(?<=[A-Za-z][a-h]) (?=[^/\n]*(?:/[^/\n]*){{{i}}}  [wb]   )", f"{rank} ") for i, rank in enumerate(_RANKS)
)
MEN_ON_SQUARES = (*_EMPTY, *_FILE[::-1], *_RANK, (r"(?:\. |/ )+(?=[^\n]*  [wb]   )", ""))
"""`TaskTokens.spelling` by which a position becomes a list of its pieces, each with a square: ``ke8 ``."""


def men_parts(men: str) -> dict[str, tuple[str, ...]]:
    """The tokens of pieces on squares: kind, file, rank and square."""
    return {
        f"{man}{square} ": (man, f"{man}{square}", f"on {square}", f"on file {square[0]}", f"on rank {square[1]}")
        for man, square in product(men, _SQUARES)
    }


def move_parts(pieces: str, pawns: bool = False) -> dict[str, tuple[str, ...]]:
    """The tokens of moves in SAN: what moves, where needed whence, and where to with what comes of it.

    A move is two or three tokens and not one, so that what is chosen among at each is few: the logits of a policy of
    width d are of rank d, and which of some hundreds of moves are legal is more than a narrow one can say at once.

    Args:
        pieces: that move, e.g. ``"KQR"``.
        pawns: whether pawns do too, and White may castle.
    """
    marks: dict[str, tuple[str, ...]] = {f"{piece} ": (f"piece {piece}",) for piece in pieces}
    marks |= {f"{mark} ": ("from", f"from {mark}") for mark in _FILES + _RANKS}
    marks |= {f"{text}x ": (*parts, "x") for text, parts in marks.items()}
    ends: dict[str, tuple[str, ...]] = {"": (), "+": ("+",), "#": ("#",)}
    promotions = {f"={man}{end}": (f"={man}", *parts) for man in "QRBN" for end, parts in ends.items()}
    targets = {
        spaced_san(f"{square}{end}"): (f"to {square}", f"file {square[0]}", f"rank {square[1]}", *parts)
        for square in _SQUARES
        for end, parts in (ends | promotions if pawns and square[1] == "8" else ends).items()
    }
    castling = {spaced_san(f"{way}{end}"): (way, *ends[end]) for way in ("O-O", "O-O-O") for end in ends if pawns}
    return marks | targets | castling


def clock_parts() -> dict[str, tuple[str, ...]]:
    """The tokens of the two numbers at the end of a position: plies since a capture or pawn's move, and moves."""
    ends = (("plies", "   ", 100), ("moves", "\n", 200))
    return {
        " ".join(str(n)) + end: (name, f"{n // 10} tens", f"{n % 10} ones")
        for name, end, most in ends
        for n in range(most)
    }


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """Pieces on squares, castling rights, numbers, and the parts of White's moves."""
    rights = (
        "".join(right * has for right, has in zip("KQkq", whose, strict=True)) for whose in product((0, 1), repeat=4)
    )
    castling = {f"  w   {' '.join(right or '-')}   -   ": ("rights", *right) for right in rights}
    men = men_parts("kqrbnpKQRBNP")
    return TaskTokens({**men, **castling, **clock_parts(), **move_parts("KQRBN", pawns=True)}, MEN_ON_SQUARES)
