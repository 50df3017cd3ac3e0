"""Scripted players of the maze, and the recipe of its datasets.

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
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any

from lmrl.envs.maze.layouts import LAYOUTS, MOVES, Cell, Layout, find_layout
from lmrl.envs.task import Recording, recording_seed, turn_chance
from lmrl.errors import UserError
from lmrl.types import Policy, Reply, Request, Start

__all__ = ["PARTS", "PLAYERS", "SKILL", "MazePlayer", "recording"]

_ACTIONS = tuple(MOVES)


class MazePlayer:
    """A player that plays a share of its moves towards the goal and the others uniformly at random.

    ``skill=0`` is the uniform legal player, ``skill=0.15`` the one that recorded the dataset (15 % of the actions from
    a solver, 85 % uniform), ``skill=1`` the optimal one. The environment gives the solver its position: in the
    partially observed maze it knows more than it reads, so no policy of texts can be asked to equal it.

    Args:
        skill: probability of the optimal move, from 0 to 1.
        layout: the maze that it knows.
        parts: sets of cells; it never leaves the first one that holds the cell where the episode began, choosing
            uniformly among the moves that stay inside where it would.

    Raises:
        UserError: for a skill that is no probability.
    """

    def __init__(
        self, skill: float, layout: Layout = LAYOUTS["double_t_maze"], parts: Sequence[Collection[Cell]] = ()
    ) -> None:
        if not 0 <= skill <= 1:
            raise UserError(f"skill must be from 0 to 1, got {skill}")
        self._skill = skill
        self._layout = layout
        self._parts = list(map(frozenset, parts))
        self._best: dict[Cell, Mapping[Cell, str]] = {}  # by goal

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """Return a move for each request."""
        return [Reply(self._move(request, turn_chance(request))) for request in requests]

    def _move(self, request: Request, chance: Random) -> str:
        moves = self._moves(request)
        if chance.random() < self._skill:
            goal = request.info["goal"]
            if goal not in self._best:
                self._best[goal] = best_moves(self._layout, goal)
            best = self._best[goal][request.info["position"]]
            # The shortest way may lead out of the part; then the move is drawn at random.
            if best in moves:
                return best
        return chance.choice(moves)

    def _moves(self, request: Request) -> Sequence[str]:
        """Return all four moves, or those that stay in the part where the episode began."""
        cell = request.info["position"]
        for part in self._parts:
            if request.info["start"]["init_position"] in part:
                return [action for action in _ACTIONS if self._layout.after(cell, action) in part]
        return _ACTIONS


def best_moves(layout: Layout, goal: Cell) -> dict[Cell, str]:
    """Return for each cell but the goal the first of the four moves that comes nearer to the goal."""
    distances = layout.distances(goal)
    best: dict[Cell, str] = {}
    for cell, distance in distances.items():
        for action in _ACTIONS:
            if distances[layout.after(cell, action)] < distance:
                best[cell] = action
                break
    return best


SKILL = 0.15
"""Share of the moves that the solver chooses."""
_LAYOUT = "double_t_maze"
_MIDDLE = 0.3  # probability that an episode begins in the middle
_MEAN_TURNS = 22.5
_MAX_TURNS = 100

# The bars of the three T's, where episodes begin.
_LEFT: tuple[Cell, ...] = ((1, 1), (1, 2), (1, 3), (1, 4), (1, 5))
_RIGHT: tuple[Cell, ...] = ((1, 7), (1, 8), (1, 9), (1, 10), (1, 11))
_CORRIDOR: tuple[Cell, ...] = ((5, 3), (5, 4), (5, 5), (5, 6), (5, 7), (5, 8), (5, 9))
PARTS: tuple[tuple[Cell, ...], ...] = (
    (*_LEFT, (2, 3), (3, 3), (4, 3), (5, 3)),
    (*_RIGHT, (2, 9), (3, 9), (4, 9), (5, 9)),
    (*_CORRIDOR, (6, 6), (7, 6), (8, 6)),
)
"""The cells of the left T, the right T and the middle T: the bar and the stem of each."""

# Draws are spread evenly over the indices instead of independently, so that a small dataset has the intended share of
# every start: Roberts' additive sequence in three dimensions, of which two are used. Its strides are powers of the root
# of x**4 = x + 1.
_ROOT = 1.22074408460575947536
_PART_STRIDE = _ROOT**-1
_CELL_STRIDE = _ROOT**-2


PLAYERS: dict[str, Callable[[Mapping[str, Any]], Policy]] = {
    "random": lambda env: _player(0.0, env),
    "behaviour": lambda env: _player(SKILL, env),
    "optimal": lambda env: _player(1.0, env),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """Return the recipe of the dataset, the same for both observations.

    Raises:
        UserError: for another layout, because its parts are not known.
    """
    if env.get("layout", _LAYOUT) != _LAYOUT:
        raise UserError(f"the maze datasets are recorded in layout {_LAYOUT!r}, got {env['layout']!r}")
    # The middle comes first: only its episodes begin in cells that two parts share.
    return Recording(policy=MazePlayer(SKILL, parts=PARTS[::-1]), start=_start, stop=_stop)


def _player(skill: float, env: Mapping[str, Any]) -> MazePlayer:
    return MazePlayer(skill, find_layout(env.get("layout", _LAYOUT)))


def _start(seed: int, index: int) -> Start:
    # The seed shifts the whole sequence, which keeps its spread. Both numbers are in [0, 1).
    shift = recording_seed(seed, -1) / 2**53
    part = (shift + (index + 1) * _PART_STRIDE) % 1
    along = (shift + (index + 1) * _CELL_STRIDE) % 1
    if part < _MIDDLE:
        bar = _CORRIDOR
    elif part < (1 + _MIDDLE) / 2:
        bar = _LEFT
    else:
        bar = _RIGHT
    cell = bar[math.floor(along * len(bar))]
    return Start(recording_seed(seed, index), {"init_position": cell})


def _stop(request: Request) -> bool:
    # The number of turns is geometric: invert its distribution function at a uniform number that follows from the seed.
    uniform = Random(f"turns {request.seed}").random()
    turns = min(_MAX_TURNS, 1 + math.floor(math.log1p(-uniform) / math.log1p(-1 / _MEAN_TURNS)))
    return request.turn >= turns
