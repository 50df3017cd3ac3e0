"""The geometry of an empty board as arrays: neighbours, lines, what is between, and the eight symmetries."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["BETWEEN", "CORNER", "HOME", "LINES", "NEAR", "SYMMETRIES", "Bools", "Ints"]

Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int8]

# Squares are numbered as in python-chess: a1 is 0, h1 is 7, a2 is 8. Ranks and files from square to square.
_RANK, _FILE = np.divmod(np.arange(64), 8)
_UP, _SIDE = _RANK[None] - _RANK[:, None], _FILE[None] - _FILE[:, None]
_STRAIGHT = (_UP == 0) != (_SIDE == 0)
_DIAGONAL = (abs(_UP) == abs(_SIDE)) & (_UP != 0)

NEAR: Bools = np.maximum(abs(_UP), abs(_SIDE)) == 1
"""``NEAR[a, b]``: a king goes from ``a`` to ``b``."""
LINES: Mapping[str, Bools] = MappingProxyType({"R": _STRAIGHT, "Q": _STRAIGHT | _DIAGONAL})
"""``LINES["R"][a, b]``: a rook goes from ``a`` to ``b`` if nothing is between."""


def _between() -> Bools:
    """``c`` is between ``a`` and ``b`` if it is on their line and in opposite directions from them."""
    up, side = _UP[:, :, None], _SIDE[:, :, None]  # a to b
    up_c, side_c = _UP[:, None, :], _SIDE[:, None, :]  # a to c
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
