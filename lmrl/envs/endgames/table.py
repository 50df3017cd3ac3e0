"""Exact play in the endgames: the distance to mate of every position, and the best move of either side.

Values are plies to mate. An array has one axis per piece: Black's king (the ten squares of the corner, the other
positions are their mirror images), White's king, then White's other pieces. Value iteration alternates between the
sides until nothing changes: after round n all mates in n are known. No position is visited in a Python loop; the moves
of a piece are shifts of an axis.
"""

import os
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import chess
import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.utils.files import replacing

__all__ = [
    "BETWEEN", "CORNER", "HOME", "ILLEGAL", "LINES", "NEAR", "NO_WIN", "SYMMETRIES", "Bools", "Ints", "best_move",
    "cache_file", "load_table", "lone_kings", "mate_plies", "solve",
]  # fmt: skip

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int8]

# Squares are numbered as in python-chess: a1 is 0, h1 is 7, a2 is 8.
_RANK, _FILE = np.divmod(np.arange(64), 8)
# (64, 64): ranks and files from the first square to the second.
_UP = _RANK[None] - _RANK[:, None]
_SIDE = _FILE[None] - _FILE[:, None]
_STRAIGHT = (_UP == 0) != (_SIDE == 0)
_DIAGONAL = (abs(_UP) == abs(_SIDE)) & (_UP != 0)

NEAR: Bools = np.maximum(abs(_UP), abs(_SIDE)) == 1
"""``NEAR[a, b]``: a king goes from ``a`` to ``b``."""
LINES: Mapping[str, Bools] = MappingProxyType({"R": _STRAIGHT, "Q": _STRAIGHT | _DIAGONAL})
"""``LINES["R"][a, b]``: a rook goes from ``a`` to ``b`` if nothing is between."""


def _between() -> Bools:
    # ``c`` is between ``a`` and ``b`` if it lies in the direction of ``b``, seen from ``a``, and nearer than ``b``.
    # Differences from a to b, (64, 64, 1)
    up = _UP[:, :, None]
    side = _SIDE[:, :, None]
    # and from a to c, (64, 1, 64).
    up_c = _UP[:, None, :]
    side_c = _SIDE[:, None, :]
    on_line = up * side_c == side * up_c
    ahead = up * up_c + side * side_c > 0
    nearer = np.maximum(abs(up_c), abs(side_c)) < np.maximum(abs(up), abs(side))
    return np.asarray(on_line & ahead & nearer)


def _symmetries() -> NDArray[np.intp]:
    # Three mirrors generate all eight symmetries of the board.
    boards = [np.arange(64).reshape(8, 8)]
    for mirror in (np.flipud, np.fliplr, np.transpose):
        boards += [mirror(board) for board in boards]
    return np.stack(boards).reshape(8, 64).astype(np.intp)


BETWEEN: Bools = _between()
"""``BETWEEN[a, b, c]``: ``c`` is strictly between ``a`` and ``b`` on a line."""
SYMMETRIES: NDArray[np.intp] = _symmetries()
"""``SYMMETRIES[t, a]``: where symmetry ``t`` takes square ``a``."""
CORNER: tuple[int, ...] = (0, 1, 2, 3, 9, 10, 11, 18, 19, 27)
"""The ten squares of the triangle a1 d1 d4, to which every square can be taken."""


def _home(square: int) -> tuple[int, int]:
    images = SYMMETRIES[:, square]
    symmetry = int(np.isin(images, CORNER).argmax())  # the first one that leads there
    return symmetry, CORNER.index(images[symmetry])


HOME: tuple[tuple[int, int], ...] = tuple(map(_home, range(64)))
"""For each square a symmetry that takes it into the corner, and the index in `CORNER` of the square there."""

NO_WIN = 127
"""White cannot force mate."""
ILLEGAL = -1
"""No position: two pieces on a square, kings on neighbouring squares, or the side that is not to move in check."""

_BLOCKED = 255  # ILLEGAL as an unsigned byte: the largest number, so that White never goes there
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
    # With White to move, Black must not be in check. At first no mate is known.
    white: Ints = np.where(legal & ~checked, NO_WIN, ILLEGAL).astype(np.int8)
    while True:
        # One round of value iteration: Black maximises over White's values, White minimises over Black's.
        black = _black_to_move(pieces, white, smaller, legal, checked)
        best = _best_of_white(pieces, black.view(np.uint8))
        after: Ints = np.where(best < NO_WIN, best + 1, NO_WIN).astype(np.int8)
        after[white == ILLEGAL] = ILLEGAL
        if np.array_equal(after, white):
            return white, black
        white = after


def lone_kings() -> Ints:
    """Return the values of the two kings alone, White to move, shape (10, 64): never won."""
    return np.where(_positions("")[0], NO_WIN, ILLEGAL).astype(np.int8)


def _positions(pieces: str) -> tuple[Bools, Bools]:
    """Return the positions in which Black may be to move, and those in which Black is in check."""
    # The squares of every man, shaped so that they broadcast to one axis per man.
    black, *white = np.ix_(np.array(CORNER), *[np.arange(64)] * (1 + len(pieces)))
    men = [black, *white]
    legal = ~NEAR[black, white[0]]
    for first, second in combinations(men, 2):
        legal = legal & (first != second)
    checked = np.zeros_like(legal)
    for kind, man in zip(pieces, white[1:], strict=True):
        # The man gives check if the king is on one of its lines and nothing stands between.
        attacks = LINES[kind][man, black]
        for other in white:
            if other is not man:
                attacks = attacks & ~BETWEEN[man, black, other]
        checked |= attacks
    return legal, checked & legal


def _black_to_move(pieces: str, white: Ints, smaller: Mapping[str, Ints], legal: Bools, checked: Bools) -> Ints:
    """Return Black's values: the longest of what its moves lead to; without a move, mate or stalemate."""
    best = np.full(white.shape, ILLEGAL, np.int8)
    for corner, square in enumerate(CORNER):
        for target in map(int, np.flatnonzero(NEAR[square])):
            np.maximum(best[corner], _seen_from(target, white), out=best[corner])
            # Where a white man stands on the target, the king takes it, and the value is that of the smaller set. The
            # first axis of best[corner] is White's king, which cannot be taken.
            for axis in range(1, 1 + len(pieces)):
                taken = np.moveaxis(best[corner], axis, 0)[target]  # a view
                np.maximum(taken, _seen_from(target, smaller[pieces[: axis - 1] + pieces[axis:]]), out=taken)
    stuck = best == ILLEGAL
    value = np.where(best < NO_WIN, best + 1, NO_WIN)
    value[stuck] = np.where(checked, 0, NO_WIN)[stuck]
    return np.where(legal, value, ILLEGAL).astype(np.int8)


def _seen_from(square: int, values: Ints) -> Ints:
    """Return the values with Black's king on one square of the board; the axes are those of the other pieces."""
    # Mirror the board until the king is in the corner; the others move with it.
    symmetry, corner = HOME[square]
    image = SYMMETRIES[symmetry]
    seen: Ints = values[corner][np.ix_(*[image] * (values.ndim - 1))]
    return seen


def _best_of_white(pieces: str, values: _Bytes) -> _Bytes:
    """Return the smallest value to which a move of White leads."""
    best = np.full_like(values, _BLOCKED)
    for axis, kind in enumerate(f"K{pieces}", start=1):
        cost = _by_rank(values, axis)
        cheapest = _by_rank(best, axis)
        for up, side in _DIRECTIONS[kind]:
            if up:
                _slide(cost, cheapest, up, side, far=kind != "K")
            else:
                _slide(cost.swapaxes(0, 1), cheapest.swapaxes(0, 1), side, 0, far=kind != "K")
    return best


def _by_rank(array: _Bytes, axis: int) -> _Bytes:
    """Return a view of which the first two axes are rank and file of one man; writing to it fills the array."""
    split = array.reshape(*array.shape[:axis], 8, 8, *array.shape[axis + 1 :])
    return np.moveaxis(split, (axis, axis + 1), (0, 1))


def _slide(cost: _Bytes, best: _Bytes, step: int, side: int, far: bool) -> None:
    """Lower ``best`` by moves along the first axis (by ``step``, 1 or -1) and at the same time the second (``side``).

    Args:
        cost: the values of the squares to which a man goes, (8, 8, ...).
        best: the smallest value so far of the squares from which it goes, (8, 8, ...).
        step: direction along the first axis.
        side: direction along the second axis, -1, 0 or 1.
        far: whether the man goes on as long as the squares are free; a king goes one square.
    """
    # Go from the far edge towards the start of the line and carry along the best value that lies ahead.
    ahead = np.full_like(cost[0], _BLOCKED)
    for here in range(6, -1, -1) if step > 0 else range(1, 8):
        there = cost[here + step]
        if far:  # to the next square, or beyond it where it is free
            there = np.where(there == _BLOCKED, there, np.minimum(there, ahead))
        # Shift by one file for a diagonal; nothing comes from beyond the edge.
        ahead = np.full_like(there, _BLOCKED)
        source = slice(max(0, -side), 8 - max(0, side))
        target = slice(max(0, side), 8 - max(0, -side))
        ahead[source] = there[target]
        np.minimum(best[here], ahead, out=best[here])


_VERSION = 1  # version of the values and of their layout in the file


@lru_cache(maxsize=8)
def load_table(pieces: str) -> tuple[Ints, Ints]:
    """Return plies to mate with White and with Black to move, see `solve`, as read-only arrays.

    They come from the cache file. If there is none, or it is damaged, they are computed (a second for one piece, a few
    for two) and written there if the folder can be written.

    Args:
        pieces: White's pieces next to the king: ``Q``, ``R``, ``QR`` or ``RR``.
    """
    path = cache_file(pieces)
    tables = None if path is None else _read(path, (10,) + (64,) * (1 + len(pieces)))
    if tables is None:
        # The values after Black takes one of the pieces.
        smaller: dict[str, Ints] = {}
        for taken in range(len(pieces)):
            left = pieces[:taken] + pieces[taken + 1 :]
            smaller[left] = load_table(left)[0] if left else lone_kings()
        tables = solve(pieces, smaller)
        if path is not None:
            _write(path, tables)
    for table in tables:
        table.flags.writeable = False
    return tables


def cache_file(pieces: str) -> Path | None:
    """Return the file of a table, in ``$XDG_CACHE_HOME/lmrl`` or ``~/.cache/lmrl``; None if there is no home."""
    folder = os.environ.get("XDG_CACHE_HOME")
    if not folder:
        try:
            folder = str(Path.home() / ".cache")
        except RuntimeError:
            return None
    return Path(folder) / "lmrl" / f"endgame-k{pieces}K-v{_VERSION}.npz"


def _read(path: Path, shape: tuple[int, ...]) -> tuple[Ints, Ints] | None:
    """Read the tables of a file; return None if it is missing or damaged (the format has checksums)."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            tables = arrays["white"], arrays["black"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    for table in tables:
        if table.shape != shape or table.dtype != np.int8:
            return None
    return tables


def _write(path: Path, tables: tuple[Ints, Ints]) -> None:
    # Without a cache everything works, only slower.
    with suppress(OSError), replacing(path) as file:
        np.savez_compressed(file, white=tables[0], black=tables[1])


_KINDS = {chess.QUEEN: "Q", chess.ROOK: "R"}
_MEN = ("", "Q", "R", "QR", "RR")
_IMAGES = SYMMETRIES.tolist()

_Place: TypeAlias = tuple[str, list[int]]  # White's pieces without the king; squares of k, K and of these pieces


def mate_plies(board: chess.Board) -> int | None:
    """Return the plies until White mates if both play their best, or None if White cannot force mate.

    The number is even with Black to move; 0 is mate. A win in n moves is 2 n - 1 plies with White to move. Draws by
    repetition or by 75 moves are not considered.

    Raises:
        UserError: unless there is a lone black king against a king and, at most, a queen or a rook and one more rook.
    """
    plies = _plies(_place(board), board.turn)
    return None if plies == NO_WIN else plies


def best_move(board: chess.Board) -> chess.Move:
    """Return the move that mates soonest, or is mated latest; of equal ones, the first in the order of UCI.

    The position must be legal and the game not over.

    Raises:
        UserError: see `mate_plies`.
    """
    sign = 1 if board.turn == chess.WHITE else -1
    kinds, squares = _place(board)
    best: tuple[int, str] | None = None
    for move in board.legal_moves:
        after = [move.to_square if square == move.from_square else square for square in squares]
        left = kinds
        # Black's king may take a piece: remove it from both lists. The two kings come first in `squares`.
        if board.turn == chess.BLACK and move.to_square in squares:
            taken = squares.index(move.to_square)
            del after[taken]
            left = kinds[: taken - 2] + kinds[taken - 1 :]
        choice = (sign * _plies((left, after), not board.turn), move.uci())
        if best is None or choice < best:
            best = choice
    assert best is not None
    return chess.Move.from_uci(best[1])


def _place(board: chess.Board) -> _Place:
    black = board.king(chess.BLACK)
    white = board.king(chess.WHITE)
    kinds = ""
    squares: list[int] = []
    # In the order of the tables: queens before rooks, and by square.
    for piece, kind in _KINDS.items():
        for square in board.pieces(piece, chess.WHITE):
            kinds += kind
            squares.append(square)
    if black is None or white is None or kinds not in _MEN or board.occupied.bit_count() != 2 + len(kinds):
        raise UserError(
            "the distance to mate is known for a lone black king against a king with Q, R, QR or RR, "
            f"got {board.board_fen()}"
        )
    return kinds, [black, white, *squares]


def _plies(place: _Place, turn: chess.Color) -> int:
    kinds, (black, *white) = place
    if not kinds:
        return NO_WIN
    # Mirror the board so that Black's king is in the corner.
    symmetry, corner = HOME[black]
    image = _IMAGES[symmetry]
    index = (corner, *[image[square] for square in white])
    return int(load_table(kinds)[0 if turn == chess.WHITE else 1][index])
