"""Scripted players of the maze. They look at ``info["position"]``, so they play all three descriptions alike."""

from collections.abc import Collection, Mapping, Sequence
from random import Random

from lmrl.behaviours.chance import turn_chance
from lmrl.envs.layouts import LAYOUTS, MOVES, Cell, Layout
from lmrl.errors import UserError
from lmrl.protocols import Reply, Request

__all__ = ["MazePlayer"]

_ACTIONS = tuple(MOVES)


class MazePlayer:
    """Plays a share of its moves towards the goal and the others uniformly at random.

    ``skill=0`` is the uniform legal player, ``skill=0.15`` the one that recorded the dataset (15 % of the actions from
    a solver, 85 % uniform), ``skill=1`` the optimal one. The solver is told the position by the environment: in the
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
        self._skill, self._layout = skill, layout
        self._parts = [frozenset(part) for part in parts]
        self._best: dict[Cell, Mapping[Cell, str]] = {}

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A move for each request."""
        return [Reply(self._move(request, turn_chance(request))) for request in requests]

    def _move(self, request: Request, chance: Random) -> str:
        moves = self._moves(request)
        if chance.random() < self._skill:
            best = self._solved(request.info["goal"])[request.info["position"]]
            if best in moves:
                return best
        return chance.choice(moves)

    def _moves(self, request: Request) -> Sequence[str]:
        """All four, or those that stay in the part where the episode began."""
        cell = request.info["position"]
        for part in self._parts:
            if request.info["start"]["init_position"] in part:
                return [action for action in _ACTIONS if self._layout.after(cell, action) in part]
        return _ACTIONS

    def _solved(self, goal: Cell) -> Mapping[Cell, str]:
        if goal not in self._best:
            self._best[goal] = best_moves(self._layout, goal)
        return self._best[goal]


def best_moves(layout: Layout, goal: Cell) -> dict[Cell, str]:
    """For each cell but the goal, the first of the four moves that comes nearer to it."""
    distances = layout.distances(goal)
    nearer = {
        cell: [action for action in _ACTIONS if distances[layout.after(cell, action)] < distance]
        for cell, distance in distances.items()
    }
    return {cell: actions[0] for cell, actions in nearer.items() if actions}
