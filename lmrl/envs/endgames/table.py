"""Exact play in the endgames: the distance to mate of every position, and the best move of either side.

Values are plies to mate. An array has one axis per piece: Black's king (the ten squares of the corner, the other
positions are their mirror images), White's king, then White's other pieces. In turns, Black's values follow from
White's and the other way round, until nothing changes: after round n all mates in n are known. No position is visited
in a Python loop; a piece's moves are shifts of an axis.
"""

import operator
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, reduce
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import chess
import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.utils.files import replacing

__all__ = [
    "BETWEEN",
    "CORNER",
    "HOME",
    "ILLEGAL",
    "LINES",
    "NEAR",
    "NO_WIN",
    "SYMMETRIES",
    "Bools",
    "Ints",
    "best_move",
    "cache_file",
    "load_table",
    "lone_kings",
    "mate_plies",
    "solve",
]

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int8]

# Squares are numbered as in python-chess: a1 is 0, h1 is 7, a2 is 8. Ranks and files from square to square.
_RANK, _FILE = np.divmod(np.arange(64), 8)
_UP = _RANK[None] - _RANK[:, None]
_SIDE = _FILE[None] - _FILE[:, None]
_STRAIGHT = (_UP == 0) != (_SIDE == 0)
_DIAGONAL = (abs(_UP) == abs(_SIDE)) & (_UP != 0)

NEAR: Bools = np.maximum(abs(_UP), abs(_SIDE)) == 1
"""``NEAR[a, b]``: a king goes from ``a`` to ``b``."""
LINES: Mapping[str, Bools] = MappingProxyType({"R": _STRAIGHT, "Q": _STRAIGHT | _DIAGONAL})
"""``LINES["R"][a, b]``: a rook goes from ``a`` to ``b`` if nothing is between."""


def _between() -> Bools:
    """``c`` is between ``a`` and ``b`` if it is on their line and in opposite directions from them."""
    # a to b
    up = _UP[:, :, None]
    side = _SIDE[:, :, None]
    # a to c
    up_c = _UP[:, None, :]
    side_c = _SIDE[:, None, :]
    on_line = up * side_c == side * up_c
    ahead = up * up_c + side * side_c > 0
    nearer = np.maximum(abs(up_c), abs(side_c)) < np.maximum(abs(up), abs(side))
    return np.asarray(on_line & ahead & nearer)


def _symmetries() -> NDArray[np.intp]:
    boards = [np.arange(64).reshape(8, 8)]
    for turn in (np.flipud, np.fliplr, np.transpose):
        boards += [turn(board) for board in boards]
    return np.stack([board.ravel() for board in boards]).astype(np.intp)


BETWEEN: Bools = _between()
"""``BETWEEN[a, b, c]``: ``c`` is strictly between ``a`` and ``b`` on a line."""
SYMMETRIES: NDArray[np.intp] = _symmetries()
"""``SYMMETRIES[t, a]``: where symmetry ``t`` takes square ``a``."""
CORNER: tuple[int, ...] = (0, 1, 2, 3, 9, 10, 11, 18, 19, 27)
"""The ten squares of the triangle a1 d1 d4, to which every square can be taken."""


def _home(square: int) -> tuple[int, int]:
    return next((t, CORNER.index(image[square])) for t, image in enumerate(SYMMETRIES) if image[square] in CORNER)


HOME: tuple[tuple[int, int], ...] = tuple(_home(square) for square in range(64))
"""For each square a symmetry that takes it into the corner, and the index in `CORNER` where it arrives."""


NO_WIN = 127
"""White cannot force mate."""
ILLEGAL = -1
"""No position: two pieces on a square, kings side by side, or the side that is not to move in check."""

_BLOCKED = 255  # ILLEGAL read as a number without sign: the largest of all, so that White never goes there
_Bytes: TypeAlias = NDArray[np.uint8]
_STRAIGHT_LINES = ((1, 0), (-1, 0), (0, 1), (0, -1))
_ALL_WAYS = (*_STRAIGHT_LINES, (1, 1), (1, -1), (-1, 1), (-1, -1))
_DIRECTIONS = {"K": _ALL_WAYS, "Q": _ALL_WAYS, "R": _STRAIGHT_LINES}


def solve(pieces: str, smaller: Mapping[str, Ints]) -> tuple[Ints, Ints]:
    """Plies to mate with White and with Black to move, `NO_WIN` or `ILLEGAL`.

    Args:
        pieces: White's pieces next to the king: ``Q``, ``R``, ``QR`` or ``RR``.
        smaller: for each set that is left when one of them is taken, the values with White to move.

    Returns:
        Two arrays of shape (10, 64, 64) or, with two pieces, (10, 64, 64, 64).
    """
    legal, checked = _positions(pieces)
    white: Ints = np.where(legal & ~checked, NO_WIN, ILLEGAL).astype(np.int8)
    while True:
        black = _black_to_move(pieces, white, smaller, legal, checked)
        best = _best_of_white(pieces, black.view(np.uint8))
        after: Ints = np.where(best < NO_WIN, best + 1, NO_WIN).astype(np.int8)
        after[white == ILLEGAL] = ILLEGAL
        if np.array_equal(after, white):
            return white, black
        white = after


def lone_kings() -> Ints:
    """The values of the set without pieces, White to move, (10, 64): never won."""
    return np.where(_positions("")[0], NO_WIN, ILLEGAL).astype(np.int8)


def _positions(pieces: str) -> tuple[Bools, Bools]:
    """Where Black may be to move, and where Black is in check."""
    black, *white = np.ix_(np.array(CORNER), *[np.arange(64)] * (1 + len(pieces)))
    everyone = [black, *white]
    apart = [a != b for i, a in enumerate(everyone) for b in everyone[:i]]
    legal = reduce(operator.and_, apart, ~NEAR[black, white[0]])
    checked = np.zeros_like(legal)
    for kind, man in zip(pieces, white[1:], strict=True):
        nobody_between = [~BETWEEN[man, black, other] for other in white if other is not man]
        checked |= reduce(operator.and_, nobody_between, LINES[kind][man, black])
    return legal, checked & legal


def _black_to_move(pieces: str, white: Ints, smaller: Mapping[str, Ints], legal: Bools, checked: Bools) -> Ints:
    """Black's best: the longest of what its moves lead to, mated or stalemated without one."""
    best = np.full(white.shape, ILLEGAL, np.int8)
    for place, square in enumerate(CORNER):
        for target in map(int, np.flatnonzero(NEAR[square])):
            np.maximum(best[place], _seen_from(target, white), out=best[place])
            for axis in range(1, 1 + len(pieces)):  # or it takes the man that stands there
                taken = np.moveaxis(best[place], axis, 0)[target]
                np.maximum(taken, _seen_from(target, smaller[pieces[: axis - 1] + pieces[axis:]]), out=taken)
    stuck = best == ILLEGAL
    value = np.where(best < NO_WIN, best + 1, NO_WIN)
    value[stuck] = np.where(checked, 0, NO_WIN)[stuck]
    return np.where(legal, value, ILLEGAL).astype(np.int8)


def _seen_from(square: int, values: Ints) -> Ints:
    """The values with Black's king on any square of the board; axes of the other pieces only."""
    symmetry, place = HOME[square]
    image = SYMMETRIES[symmetry]
    seen: Ints = values[place][np.ix_(*[image] * (values.ndim - 1))]
    return seen


def _best_of_white(pieces: str, values: _Bytes) -> _Bytes:
    """The smallest value that a move of White leads to."""
    best = np.full_like(values, _BLOCKED)
    for axis, kind in enumerate(f"K{pieces}", start=1):
        # The man's axis becomes rank and file, in front of all others. These are views: writing fills `best`.
        cost, found = (np.moveaxis(_by_rank(array, axis), (axis, axis + 1), (0, 1)) for array in (values, best))
        for up, side in _DIRECTIONS[kind]:
            if up:
                _slide(cost, found, up, side, far=kind != "K")
            else:
                _slide(cost.swapaxes(0, 1), found.swapaxes(0, 1), side, 0, far=kind != "K")
    return best


def _by_rank(array: _Bytes, axis: int) -> _Bytes:
    return array.reshape(*array.shape[:axis], 8, 8, *array.shape[axis + 1 :])


def _slide(cost: _Bytes, best: _Bytes, step: int, side: int, far: bool) -> None:
    """Moves along the first axis (by ``step``, 1 or -1) and at the same time the second (by ``side``)."""
    ahead = np.full_like(cost[0], _BLOCKED)
    for here in range(6, -1, -1) if step > 0 else range(1, 8):
        there = cost[here + step]
        if far:  # on the next square, or beyond it where it is free
            there = np.where(there == _BLOCKED, there, np.minimum(there, ahead))
        ahead = np.full_like(there, _BLOCKED)
        source = slice(max(0, -side), 8 - max(0, side))
        target = slice(max(0, side), 8 - max(0, -side))
        ahead[source] = there[target]
        np.minimum(best[here], ahead, out=best[here])


_VERSION = 1  # of the values and of their layout in the file


@lru_cache(maxsize=8)
def load_table(pieces: str) -> tuple[Ints, Ints]:
    """Plies to mate with White and with Black to move, see `lmrl.envs.endgames.table.solve`; not to be written to.

    They come from the cache file. If there is none, or it is damaged, they are worked out (a second for one man, a few
    for two) and written there, or not where the folder cannot be written.

    Args:
        pieces: White's pieces next to the king: ``Q``, ``R``, ``QR`` or ``RR``.
    """
    path = cache_file(pieces)
    tables = None if path is None else _read(path, (10,) + (64,) * (1 + len(pieces)))
    if tables is None:
        tables = solve(pieces, {left: load_table(left)[0] if left else lone_kings() for left in _left(pieces)})
        if path is not None:
            _write(path, tables)
    for table in tables:
        table.flags.writeable = False
    return tables


def cache_file(pieces: str) -> Path | None:
    """Where a table is kept: under ``$XDG_CACHE_HOME/lmrl`` or ``~/.cache/lmrl``; None where there is no home."""
    folder = os.environ.get("XDG_CACHE_HOME")
    if not folder:
        try:
            folder = str(Path.home() / ".cache")
        except RuntimeError:
            return None
    return Path(folder) / "lmrl" / f"endgame-k{pieces}K-v{_VERSION}.npz"


def _left(pieces: str) -> set[str]:
    """What is left when Black takes one."""
    return {pieces[:taken] + pieces[taken + 1 :] for taken in range(len(pieces))}


def _read(path: Path, shape: tuple[int, ...]) -> tuple[Ints, Ints] | None:
    """The tables in a file; None if it is missing or damaged (the format has checksums)."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            tables = arrays["white"], arrays["black"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    return tables if all(table.shape == shape and table.dtype == np.int8 for table in tables) else None


def _write(path: Path, tables: tuple[Ints, Ints]) -> None:
    # Without a cache everything works, only slower.
    with suppress(OSError), replacing(path) as file:
        np.savez_compressed(file, white=tables[0], black=tables[1])


_KINDS = {chess.QUEEN: "Q", chess.ROOK: "R"}
_MEN = ("", "Q", "R", "QR", "RR")
_IMAGES = SYMMETRIES.tolist()

_Place: TypeAlias = tuple[str, list[int]]  # White's pieces beside the king; squares of k, K and of these pieces


def mate_plies(board: chess.Board) -> int | None:
    """Plies until White mates if both play their best; None where White cannot force mate.

    An even number has Black to move; 0 is mate. A win in n moves is 2 n - 1 plies with White to move. The rules that
    end games as drawn by repetition or by 75 moves are not looked at.

    Raises:
        UserError: unless there is a lone black king against a king and, at most, a queen or a rook and one more rook.
    """
    plies = _plies(_place(board), board.turn)
    return None if plies == NO_WIN else plies


def best_move(board: chess.Board) -> chess.Move:
    """The move that mates soonest, or is mated latest; of equal ones, the first in the order of UCI.

    The position is legal and the game not over.

    Raises:
        UserError: see `mate_plies`.
    """
    sign = 1 if board.turn == chess.WHITE else -1
    choices = ((sign * _plies(place, not board.turn), move.uci(), move) for move, place in _following(board))
    return min(choices, key=itemgetter(0, 1))[2]


def _place(board: chess.Board) -> _Place:
    kings = [board.king(chess.BLACK), board.king(chess.WHITE)]
    pieces = [(kind, square) for piece, kind in _KINDS.items() for square in board.pieces(piece, chess.WHITE)]
    pieces.sort()
    kinds = "".join(kind for kind, _ in pieces)
    squares = [square for square in (*kings, *(square for _, square in pieces)) if square is not None]
    if kinds not in _MEN or len(squares) != 2 + len(kinds) or board.occupied.bit_count() != len(squares):
        raise UserError(
            "the distance to mate is known for a lone black king against a king with Q, R, QR or RR, "
            f"got {board.board_fen()}"
        )
    return kinds, squares


def _following(board: chess.Board) -> Iterator[tuple[chess.Move, _Place]]:
    """The legal moves and where they lead."""
    kinds, squares = _place(board)
    for move in board.legal_moves:
        after = [move.to_square if square == move.from_square else square for square in squares]
        if board.turn == chess.BLACK and move.to_square in squares:
            taken = squares.index(move.to_square)
            yield move, (kinds[: taken - 2] + kinds[taken - 1 :], after[:taken] + after[taken + 1 :])
        else:
            yield move, (kinds, after)


def _plies(place: _Place, turn: chess.Color) -> int:
    kinds, (black, *white) = place
    if not kinds:
        return NO_WIN
    symmetry, corner = HOME[black]
    image = _IMAGES[symmetry]
    index = (corner, *(image[square] for square in white))
    return int(load_table(kinds)[0 if turn == chess.WHITE else 1][index])
