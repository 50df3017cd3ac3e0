"""A table of Q values that plays the maze of words."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.protocols import Reply, Request
from lmrl.symbolic.grid import ACTIONS, Grid

__all__ = ["GridPolicy"]


class GridPolicy:
    """Says the move of the highest Q in the cell that the environment tells in ``info["position"]``.

    Args:
        grid: of the maze.
        q: ``(S, 4)``.
    """

    def __init__(self, grid: Grid, q: NDArray[np.floating]) -> None:
        self._grid, self._q = grid, q

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A move for each request."""
        return [Reply(ACTIONS[int(self._q[state].argmax())]) for state in self._states(requests)]

    def state_values(self, requests: Sequence[Request]) -> list[float]:
        """The highest Q in each state."""
        return [float(self._q[state].max()) for state in self._states(requests)]

    def _states(self, requests: Sequence[Request]) -> list[int]:
        found = []
        for request in requests:
            if request.info.get("goal") != self._grid.layout.goal:
                raise UserError(f"this policy walks to {self._grid.layout.goal}, not to {request.info.get('goal')}")
            found.append(self._grid.state[request.info["position"]])
        return found
