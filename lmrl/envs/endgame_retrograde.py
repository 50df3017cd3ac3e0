"""Retrograde analysis of a lone king against king and one or two of queen and rook, for all positions at once.

Values are plies to mate. An array has one axis per man: Black's king (the ten squares of the corner, the other
positions are their mirror images), White's king, then White's other men. In turns, Black's values follow from White's
and the other way round, until nothing changes: after round n all mates in n are known. No position is visited in a
Python loop; a man's moves are shifts of an axis.
"""

import operator
from collections.abc import Mapping
from functools import reduce
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmrl.envs.endgame_squares import BETWEEN, CORNER, HOME, LINES, NEAR, SYMMETRIES, Bools, Ints

__all__ = ["ILLEGAL", "NO_WIN", "lone_kings", "solve"]

NO_WIN = 127
"""White cannot force mate."""
ILLEGAL = -1
"""No position: two men on a square, kings side by side, or the side that is not to move in check."""

_BLOCKED = 255  # ILLEGAL read as a number without sign: the largest of all, so that White never goes there
_Bytes: TypeAlias = NDArray[np.uint8]
_STRAIGHT = ((1, 0), (-1, 0), (0, 1), (0, -1))
_ALL_WAYS = (*_STRAIGHT, (1, 1), (1, -1), (-1, 1), (-1, -1))
_DIRECTIONS = {"K": _ALL_WAYS, "Q": _ALL_WAYS, "R": _STRAIGHT}


def solve(men: str, smaller: Mapping[str, Ints]) -> tuple[Ints, Ints]:
    """Plies to mate with White and with Black to move, `NO_WIN` or `ILLEGAL`.

    Args:
        men: White's men beside the king: ``Q``, ``R``, ``QR`` or ``RR``.
        smaller: for each set that is left when one of them is taken, the values with White to move.

    Returns:
        Two arrays of shape (10, 64, 64) or, with two men, (10, 64, 64, 64).
    """
    legal, checked = _positions(men)
    white: Ints = np.where(legal & ~checked, NO_WIN, ILLEGAL).astype(np.int8)
    while True:
        black = _black_to_move(men, white, smaller, legal, checked)
        best = _best_of_white(men, black.view(np.uint8))
        after: Ints = np.where(best < NO_WIN, best + 1, NO_WIN).astype(np.int8)
        after[white == ILLEGAL] = ILLEGAL
        if np.array_equal(after, white):
            return white, black
        white = after


def lone_kings() -> Ints:
    """The values of the set without men, White to move, (10, 64): never won."""
    return np.where(_positions("")[0], NO_WIN, ILLEGAL).astype(np.int8)


def _positions(men: str) -> tuple[Bools, Bools]:
    """Where Black may be to move, and where Black is in check."""
    black, *white = np.ix_(np.array(CORNER), *[np.arange(64)] * (1 + len(men)))
    everyone = [black, *white]
    apart = [a != b for i, a in enumerate(everyone) for b in everyone[:i]]
    legal = reduce(operator.and_, apart, ~NEAR[black, white[0]])
    checked = np.zeros_like(legal)
    for kind, man in zip(men, white[1:], strict=True):
        nobody_between = [~BETWEEN[man, black, other] for other in white if other is not man]
        checked |= reduce(operator.and_, nobody_between, LINES[kind][man, black])
    return legal, checked & legal


def _black_to_move(men: str, white: Ints, smaller: Mapping[str, Ints], legal: Bools, checked: Bools) -> Ints:
    """Black's best: the longest of what its moves lead to, mated or stalemated without one."""
    best = np.full(white.shape, ILLEGAL, np.int8)
    for place, square in enumerate(CORNER):
        for target in map(int, np.flatnonzero(NEAR[square])):
            np.maximum(best[place], _seen_from(target, white), out=best[place])
            for axis in range(1, 1 + len(men)):  # or it takes the man that stands there
                taken = np.moveaxis(best[place], axis, 0)[target]
                np.maximum(taken, _seen_from(target, smaller[men[: axis - 1] + men[axis:]]), out=taken)
    stuck = best == ILLEGAL
    value = np.where(best < NO_WIN, best + 1, NO_WIN)
    value[stuck] = np.where(checked, 0, NO_WIN)[stuck]
    return np.where(legal, value, ILLEGAL).astype(np.int8)


def _seen_from(square: int, values: Ints) -> Ints:
    """The values with Black's king on any square of the board; axes of the other men only."""
    symmetry, place = HOME[square]
    image = SYMMETRIES[symmetry]
    seen: Ints = values[place][np.ix_(*[image] * (values.ndim - 1))]
    return seen


def _best_of_white(men: str, values: _Bytes) -> _Bytes:
    """The smallest value that a move of White leads to."""
    best = np.full_like(values, _BLOCKED)
    for axis, kind in enumerate(f"K{men}", start=1):
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
        source, target = slice(max(0, -side), 8 - max(0, side)), slice(max(0, side), 8 - max(0, -side))
        ahead[source] = there[target]
        np.minimum(best[here], ahead, out=best[here])
