"""Single steps, as learners of numbers see them."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmrl.envs.maze_paths import walked
from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.symbolic.grid import ACTIONS, Grid

__all__ = ["Transitions", "from_episodes"]


class Transitions(NamedTuple):
    """N steps; N is the length of every field."""

    state: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: NDArray[np.float32]
    next: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    """Nothing beyond has value; a step after which time ran out is not terminated."""


def from_episodes(episodes: Iterable[Episode], grid: Grid) -> Transitions:
    """The steps of a text dataset: the same that the language models learn from, without the words.

    Illegal actions have no number and are left out, and so is the call by which time runs out.

    Raises:
        UserError: there is no step, or an episode does not say where it began.
    """
    steps: list[tuple[int, int]] = []
    for number, episode in enumerate(episodes):
        cells = walked(episode, grid.layout)
        if cells is None:
            raise UserError(f"episode {number} does not say in which cell it began (a start in info, or a position)")
        lost = episode.truncated and episode.observations[-1] == "Failure\n"
        said = episode.actions[:-1] if lost else episode.actions
        # The last cell is one more than the actions.
        steps += [(grid.state[cell], ACTIONS.index(a)) for cell, a in zip(cells, said, strict=False) if a in ACTIONS]
    if not steps:
        raise UserError("the dataset must hold at least one legal action")
    state, action = np.array(steps, dtype=np.int64).T
    reward = grid.reward[state, action].astype(np.float32)
    return Transitions(state, action, reward, grid.next[state, action], grid.terminated[state, action])
