"""The recipe of the maze datasets: three parts of the maze, and no episode that leaves the part it began in.

The paper (appendix C.1) says: three symmetric sub-mazes, every trajectory inside one of them, 15 % of the actions from
a solver and 85 % uniform; so only episodes that begin next to the goal can succeed, and the way from a far start to
the goal has to be stitched together. It does not say where the borders run, where episodes start or when they are cut.
Here:

- Each part is a T. Left: row 1, columns 1-5, and the stem below it (column 3) down to the corridor; right: its mirror
  image; middle: the corridor (row 5, columns 3-9) and the stem down to the goal. The foot of an arm, (5, 3) or (5, 9),
  is also the end of the corridor: there the parts meet, and there trajectories can be stitched.
- An episode begins anywhere in the bar of its T: in the middle with probability .3, in the arms with .35 each.
- The player never leaves its part; a move that would is drawn again among those that do not.
- It ends at the goal (terminated) or is cut (truncated) after a number of turns drawn from a geometric distribution
  with mean 22.5, at most 100. Being memoryless, the clock tells nothing about the state.

The shares were chosen so that mean length, success and return come near the published 19.7, .11 and -19.7.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from lmrl.behaviours.maze import MazePlayer
from lmrl.behaviours.recording import Recording, episode_seed
from lmrl.envs.layouts import Cell, find_layout
from lmrl.errors import UserError
from lmrl.protocols import Policy, Request
from lmrl.rollout import Start

__all__ = ["PARTS", "PLAYERS", "SKILL", "recording"]

SKILL = 0.15
"""Share of the moves that the solver chooses."""
_LAYOUT = "double_t_maze"
_MIDDLE = 0.3
_MEAN_TURNS = 22.5
_MAX_TURNS = 100

_BARS = (
    tuple((1, col) for col in range(1, 6)),
    tuple((1, col) for col in range(7, 12)),
    tuple((5, col) for col in range(3, 10)),
)
_STEMS = (
    tuple((row, 3) for row in range(2, 6)),
    tuple((row, 9) for row in range(2, 6)),
    tuple((row, 6) for row in range(6, 9)),
)
PARTS: tuple[tuple[Cell, ...], ...] = tuple(bar + stem for bar, stem in zip(_BARS, _STEMS, strict=True))
"""The cells of the left T, the right T and the middle T."""

# Draws are spread evenly over the indices instead of independently, so that a small dataset has the intended share of
# every start and length: Roberts' additive sequence in three dimensions, whose strides are powers of the root of
# x**4 = x + 1.
_ROOT = 1.22074408460575947536
_STRIDES = tuple(_ROOT**-power for power in (1, 2, 3))

_T = TypeVar("_T")


PLAYERS: dict[str, Callable[[Mapping[str, Any]], Policy]] = {
    "random": lambda env: _player(0.0, env),
    "behaviour": lambda env: _player(SKILL, env),
    "optimal": lambda env: _player(1.0, env),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """The recipe for both observations.

    Raises:
        UserError: for another layout: its parts are not known.
    """
    if env.get("layout", _LAYOUT) != _LAYOUT:
        raise UserError(f"the maze datasets are recorded in layout {_LAYOUT!r}, got {env['layout']!r}")
    # The middle comes first: only its episodes begin in cells that two parts share.
    return Recording(policy=MazePlayer(SKILL, parts=PARTS[::-1]), start=_start, stop=_stop)


def _player(skill: float, env: Mapping[str, Any]) -> MazePlayer:
    return MazePlayer(skill, find_layout(env.get("layout", _LAYOUT)))


def _start(seed: int, index: int) -> Start:
    # The seed shifts the sequence as a whole; its spread stays.
    shift = episode_seed(seed, -1) / 2**53
    part, cell = ((shift + (index + 1) * stride) % 1 for stride in _STRIDES[:2])
    return Start(episode_seed(seed, index), {"init_position": _first_cell(part, cell)})


def _first_cell(part: float, cell: float) -> Cell:
    """A start from two numbers in [0, 1)."""
    if part < _MIDDLE:
        return _pick(_BARS[2], cell)
    return _pick(_BARS[0] if part < (1 + _MIDDLE) / 2 else _BARS[1], cell)


def _pick(items: Sequence[_T], number: float) -> _T:
    return items[math.floor(number * len(items))]


def _turns(seed: int) -> int:
    """How many turns the episode of that seed may last: geometric, by inverting its distribution function."""
    chance = Random(f"turns {seed}").random()
    return min(_MAX_TURNS, 1 + math.floor(math.log1p(-chance) / math.log1p(-1 / _MEAN_TURNS)))


def _stop(request: Request) -> bool:
    return request.turn >= _turns(request.seed)
