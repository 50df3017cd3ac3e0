"""The texts of chess that are one token each: a piece on its square, the parts of a move, a number.

A position's text does not name the pieces' squares: they follow from the places of its characters. So regular
expressions first rewrite a position, from ``4 k 3 / 8 / ...   w   -   -`` to ``ke8 ...   w   -   -``: each piece with
its square, rank 8 first.
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

# 1. A digit becomes as many dots. It counts only before the side to move (`` w `` or `` b ``), which no move contains,
# so the digits of a move stay.
_EMPTY = tuple((rf"{n}(?=[^\n]*   [wb]   )", " ".join("." * n)) for n in range(1, 9))
# 2. A piece gets its file: the number of squares that follow up to the end of its rank tells it.
_FILE = tuple(
    (rf"(?<=[A-Za-z]) (?=(?:[^/ \n]+ ){{{7 - i}}}(?:/|  [wb]   ))", f"{file} ") for i, file in enumerate(_FILES)
)
# 3. And its rank: the number of ranks that follow tells it.
_RANK = tuple(
    (rf"(?<=[A-Za-z][a-h]) (?=[^/\n]*(?:/[^/\n]*){{{i}}}  [wb]   )", f"{rank} ") for i, rank in enumerate(_RANKS)
)
# 4. Dots and slashes go.
MEN_ON_SQUARES = (*_EMPTY, *_FILE[::-1], *_RANK, (r"(?:\. |/ )+(?=[^\n]*  [wb]   )", ""))
"""`TaskTokens.spelling` by which a position becomes a list of its pieces, each with a square: ``ke8 ``."""


def men_parts(men: str) -> dict[str, tuple[str, ...]]:
    """Return the tokens of pieces on squares, made of kind, square, file and rank."""
    parts: dict[str, tuple[str, ...]] = {}
    for man, square in product(men, _SQUARES):
        position = (f"on {square}", f"on file {square[0]}", f"on rank {square[1]}")
        parts[f"{man}{square} "] = (man, f"{man}{square}", *position)
    return parts


def move_parts(pieces: str, pawns: bool = False) -> dict[str, tuple[str, ...]]:
    """Return the tokens of moves in SAN: the piece, its origin where SAN names it, and the target with its effect.

    A move is two or three tokens instead of one, so that each choice is among few. The logits of a policy of width d
    have rank d, so a narrow one cannot tell which of hundreds of moves are legal in one step.

    Args:
        pieces: pieces that move, e.g. ``"KQR"``.
        pawns: whether there are pawns, and White may castle.
    """
    # The first token: a piece, or the file or rank from which it moves.
    origins: dict[str, tuple[str, ...]] = {}
    for piece in pieces:
        origins[f"{piece} "] = (f"piece {piece}",)
    for mark in _FILES + _RANKS:
        origins[f"{mark} "] = ("from", f"from {mark}")
    captures: dict[str, tuple[str, ...]] = {}
    for text, parts in origins.items():
        captures[f"{text}x "] = (*parts, "x")
    # The last token: a square, then a promotion, then check or mate.
    ends: dict[str, tuple[str, ...]] = {"": (), "+": ("+",), "#": ("#",)}
    promotions: dict[str, tuple[str, ...]] = {}
    for man, end in product("QRBN", ends):
        promotions[f"={man}{end}"] = (f"={man}", *ends[end])
    targets: dict[str, tuple[str, ...]] = {}
    for square in _SQUARES:
        file = square[0]
        rank = square[1]
        for end, parts in (ends | promotions if pawns and rank == "8" else ends).items():
            targets[spaced_san(f"{square}{end}")] = (f"to {square}", f"file {file}", f"rank {rank}", *parts)
    if pawns:
        for way, end in product(("O-O", "O-O-O"), ends):
            targets[spaced_san(f"{way}{end}")] = (way, *ends[end])
    return origins | captures | targets


def clock_parts() -> dict[str, tuple[str, ...]]:
    """Return the tokens of the two numbers at the end of a position: plies since a capture or pawn move, and moves."""
    parts: dict[str, tuple[str, ...]] = {}
    for name, end, most in (("plies", "   ", 100), ("moves", "\n", 200)):
        for n in range(most):
            parts[" ".join(str(n)) + end] = (name, f"{n // 10} tens", f"{n % 10} ones")
    return parts


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """Return the tokens of pieces on squares, castling rights, numbers, and the parts of White's moves."""
    castling: dict[str, tuple[str, ...]] = {}
    # All 16 subsets of the castling rights, each with its letters in the order of a FEN.
    for letters in product(("", "K"), ("", "Q"), ("", "k"), ("", "q")):
        rights = "".join(letters)
        castling[f"  w   {' '.join(rights or '-')}   -   "] = ("rights", *rights)
    men = men_parts("kqrbnpKQRBNP")
    return TaskTokens({**men, **castling, **clock_parts(), **move_parts("KQRBN", pawns=True)}, MEN_ON_SQUARES)
