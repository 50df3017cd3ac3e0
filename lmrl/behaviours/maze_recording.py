"""The recipe of the maze datasets: three parts of the maze, and no episode that leaves the part it began in.

The paper (appendix C.1) says: three symmetric sub-mazes, every trajectory inside one of them, 15 % of the actions from
a solver and 85 % uniform; so only episodes that begin next to the goal can succeed, and the way from a far start to
the goal has to be stitched together. It does not say where the borders run, where episodes start or when they are cut.
Here:

- left T: row 1, columns 1-5, with its stem (column 3, rows 2-4); right T: its mirror image; goal T: row 5, columns 3-9,
  with its stem down to the goal. Together they are all cells, each once.
- 16 % of the episodes begin in the goal T (uniform over its cells but the goal), the others in one of the arms, left
  and right alike; in an arm 30 % begin at the foot of the stem, the others uniformly over its cells.
- An episode ends at the goal (terminated), with the step that leaves its part (truncated), or after 100 actions
  (truncated, before the game says ``Failure``).

The shares were chosen so that mean length, success and return come near the published 19.7, .11 and -19.7.
"""

import math
from collections.abc import Sequence
from typing import TypeVar

from lmrl.behaviours.maze import MazePlayer
from lmrl.behaviours.recording import Recording, episode_seed
from lmrl.envs.layouts import LAYOUTS, Cell
from lmrl.protocols import Request
from lmrl.rollout import Start

__all__ = ["PARTS", "maze_recording"]

_MAZE = LAYOUTS["double_t_maze"]
_SKILL = 0.15
_NEAR_GOAL = 0.16
_AT_FOOT = 0.3
_MAX_ACTIONS = 100

_LEFT = (*((1, c) for c in range(1, 6)), *((r, 3) for r in range(2, 5)))
_RIGHT = (*((1, c) for c in range(7, 12)), *((r, 9) for r in range(2, 5)))
_GOAL = (*((5, c) for c in range(3, 10)), *((r, 6) for r in range(6, 9)))
PARTS: tuple[tuple[Cell, ...], ...] = (_LEFT, _RIGHT, _GOAL)
"""The cells of the left T, the right T and the goal T; the foot of a stem is the last one of an arm."""

_PART_OF = {cell: number for number, part in enumerate(PARTS) for cell in part}

# Start draws are spread evenly over the indices instead of independently, so that a small dataset has the intended
# share of every start: Roberts' additive sequence in three dimensions, whose strides are powers of the root of
# x**4 = x + 1.
_ROOT = 1.22074408460575947536
_STRIDES = tuple(_ROOT**-power for power in (1, 2, 3))

_T = TypeVar("_T")


def maze_recording() -> Recording:
    """The recipe for both observations; needs the default layout and goal."""
    return Recording(policy=MazePlayer(_SKILL), start=_start, stop=_stop)


def _start(seed: int, index: int) -> Start:
    own_seed = episode_seed(seed, index)
    # The seed shifts the sequence as a whole; its spread stays.
    shift = episode_seed(seed, -1) / 2**53
    where, foot, cell = ((shift + (index + 1) * stride) % 1 for stride in _STRIDES)
    return Start(own_seed, {"init_position": _first_cell(where, foot, cell)})


def _first_cell(where: float, foot: float, cell: float) -> Cell:
    """A start from three numbers in [0, 1)."""
    if where < _NEAR_GOAL:
        return _pick([place for place in _GOAL if place != _MAZE.goal], cell)
    arm = _LEFT if where < (1 + _NEAR_GOAL) / 2 else _RIGHT
    return arm[-1] if foot < _AT_FOOT else _pick(arm, cell)


def _pick(items: Sequence[_T], number: float) -> _T:
    return items[math.floor(number * len(items))]


def _stop(request: Request) -> bool:
    began, now = request.info["start"]["init_position"], request.info["position"]
    return _PART_OF[began] != _PART_OF[now] or request.turn >= _MAX_ACTIONS
