"""Where batches of steps come from: a memory that is played into, or a dataset."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset

from lmrl.symbolic.grid import GridMaze
from lmrl.symbolic.transitions import Transitions

__all__ = ["Recorded", "Replay"]

_FRESH = 4
"""A quarter of a batch's size is played before each batch."""
_STEP = np.dtype([("state", "i8"), ("action", "i8"), ("reward", "f4"), ("next", "i8"), ("terminated", "?")])


class Recorded(IterableDataset[list[Tensor]]):
    """Batches of recorded steps, drawn with replacement, endlessly.

    Args:
        data: the steps.
        size: of a batch.
        seed: of the draws.
    """

    def __init__(self, data: Transitions, size: int, seed: int) -> None:
        self._data, self._size, self._seed = data, size, seed

    def __iter__(self) -> Iterator[list[Tensor]]:
        chance = np.random.default_rng(self._seed)
        while True:
            drawn = chance.integers(len(self._data.state), size=self._size)
            yield [torch.from_numpy(column[drawn]) for column in self._data]


class Replay(IterableDataset[list[Tensor]]):
    """Batches from all that was played so far, endlessly; before each the newest policy plays on.

    Args:
        env: is played.
        table: the newest Q, ``(S, 4)``.
        size: of a batch.
        epsilon: probability of a move at random.
        room: how many steps are remembered, the newest.
        seed: of all that is random.
    """

    def __init__(
        self,
        env: GridMaze,
        table: Callable[[], NDArray[np.floating]],
        size: int,
        epsilon: float,
        room: int,
        seed: int,
    ) -> None:
        self._env, self._table, self._size, self._epsilon = env, table, size, epsilon
        self._room, self._seed = room, seed
        self._state: int | None = None

    def __iter__(self) -> Iterator[list[Tensor]]:
        chance = np.random.default_rng(self._seed)
        memory, played = np.zeros(self._room, dtype=_STEP), 0
        while True:
            moves = self._table().argmax(-1)
            for _ in range(self._size // _FRESH if played else self._size):
                if (step := self._step(moves, chance)) is not None:
                    memory[played % self._room] = step
                    played += 1
            drawn = memory[chance.integers(min(played, self._room), size=self._size)]
            yield [torch.from_numpy(drawn[name].copy()) for name in Transitions._fields]

    def _step(
        self, moves: NDArray[np.integer], chance: np.random.Generator
    ) -> tuple[int, int, float, int, bool] | None:
        """One step of the running episode; None where time ran out, since that call moves nobody."""
        if self._state is None:
            self._state, _ = self._env.reset(seed=int(chance.integers(2**31)))
        state = self._state
        action = int(chance.integers(4)) if chance.random() < self._epsilon else int(moves[state])
        following, reward, terminated, truncated, _ = self._env.step(action)
        self._state = None if terminated or truncated else following
        return None if truncated else (state, action, reward, following, terminated)
