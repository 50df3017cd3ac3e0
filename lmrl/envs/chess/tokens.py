"""The texts of chess that are one token each: a man on its square, a move, a number.

The squares of men are not spelt in a position's text: they follow from the places of its characters. So a position is
respelt first, ``4 k 3 / 8 / ...   w   -   -`` as ``ke8 ...   w   -   -``: each man with its square, rank 8 first.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any

from lmrl.envs.chess.env import spaced_san
from lmrl.envs.task import TaskTokens

__all__ = ["MEN_ON_SQUARES", "clock_parts", "men_parts", "move_parts", "tokens"]

_FILES, _RANKS = "abcdefgh", "12345678"
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
"""`TaskTokens.spelling` by which a position becomes a list of its men, each with a square: ``ke8 ``."""


def men_parts(men: str) -> dict[str, tuple[str, ...]]:
    """The tokens of men on squares: who, on which file, rank and square."""
    return {
        f"{man}{square} ": (man, f"{man}{square}", f"on {square}", f"on file {square[0]}", f"on rank {square[1]}")
        for man, square in product(men, _SQUARES)
    }


def move_parts(sans: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The tokens of moves in SAN: what moves, whence, where to, and what comes of it."""
    return {spaced_san(san): tuple(_parts(san)) for san in sans}


def _parts(san: str) -> Iterator[str]:
    plain = san.rstrip("+#")
    if plain != san:
        yield san[-1]
    if plain.startswith("O"):
        yield plain
        return
    plain, _, promoted = plain.partition("=")
    piece, way = (plain[0], plain[1:]) if plain[0].isupper() else ("P", plain)
    yield f"piece {piece}"
    yield from (f"to {way[-2:]}", f"file {way[-2]}", f"rank {way[-1]}")
    yield from (f"from {mark}" for mark in way[:-2] if mark != "x")
    yield from ("x",) if "x" in way else ()
    yield from (f"={promoted}",) if promoted else ()


def _moves() -> Iterator[str]:
    """White's moves, but those that name the rank they come from, or of queens and bishops the file."""
    for piece, x, square, end in product("KQRBN", ("", "x"), _SQUARES, ("", "+", "#")):
        yield f"{piece}{x}{square}{end}"
    for piece, file, x, square, end in product("RN", _FILES, ("", "x"), _SQUARES, ("", "+")):
        if file != square[0] and (piece == "R" or abs(ord(file) - ord(square[0])) <= 2):
            yield f"{piece}{file}{x}{square}{end}"
    for square, end in product(_SQUARES, ("", "+", "#")):
        sides = (_FILES[i] for i in range(8) if abs(i - _FILES.index(square[0])) == 1)
        for start, promoted in product(("", *(f"{file}x" for file in sides)), "QRBN" if square[1] == "8" else ("",)):
            if square[1] not in ("1", "2"):
                yield f"{start}{square}{'=' * bool(promoted)}{promoted}{end}"
    yield from (f"{castling}{end}" for castling in ("O-O", "O-O-O") for end in ("", "+", "#"))


def clock_parts() -> dict[str, tuple[str, ...]]:
    """The tokens of the two numbers at the end of a position: plies since a capture or pawn's move, and moves."""
    ends = (("plies", "   ", 100), ("moves", "\n", 200))
    return {
        " ".join(str(n)) + end: (name, f"{n // 10} tens", f"{n % 10} ones")
        for name, end, most in ends
        for n in range(most)
    }


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """Men on squares, castling rights, numbers, and White's moves."""
    rights = (
        "".join(right * has for right, has in zip("KQkq", whose, strict=True)) for whose in product((0, 1), repeat=4)
    )
    castling = {f"  w   {' '.join(right or '-')}   -   ": ("rights", *right) for right in rights}
    men = men_parts("kqrbnpKQRBNP")
    return TaskTokens({**men, **castling, **clock_parts(), **move_parts(_moves())}, MEN_ON_SQUARES)
