"""DQN and CQL on the grid, as LightningModules: their loss, their batches, their policy."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from lmrl.checkpoints.saving import class_name
from lmrl.contrib.symbolic.grid import ACTIONS, Grid, GridMaze, Transitions, from_episodes
from lmrl.data.storage import read_dataset
from lmrl.envs.maze.layouts import LAYOUTS, find_layout
from lmrl.errors import UserError
from lmrl.types import Reply, Request

__all__ = ["GridPolicy", "Recorded", "Replay", "SymbolicCQL", "SymbolicDQN", "SymbolicLoss", "symbolic_loss"]


class SymbolicLoss(NamedTuple):
    """Means over N steps."""

    loss: Tensor
    td_loss: Tensor
    cql_loss: Tensor


def symbolic_loss(
    q: Tensor, target_next: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, gamma: float, cql_weight: float
) -> SymbolicLoss:
    """Squared TD error (Mnih et al. 2015) plus ``cql_weight * (logsumexp Q(s, .) - Q(s, a))`` (Kumar et al. 2020).

    Args:
        q: (N, 4) of the states.
        target_next: (N, 4) of the states that follow, from the target network; no gradient goes there.
        action: (N,) what was done.
        reward: (N,).
        terminated: (N,) bool: the value beyond is zero.
        gamma: discount.
        cql_weight: 0 for DQN.
    """
    taken = q.gather(1, action[:, None])[:, 0]  # Q(s, a), (N,)
    target = reward + gamma * target_next.detach().amax(1) * ~terminated
    td_loss = F.mse_loss(taken, target)
    # Pushes down the values of all actions, and up those of the data: no untried action is overestimated.
    cql_loss = (q.logsumexp(1) - taken).mean()
    return SymbolicLoss(td_loss + cql_weight * cql_loss, td_loss, cql_loss)


_FRESH = 4
"""A quarter of a batch's size is played before each batch."""
_STEP = np.dtype([("state", "i8"), ("action", "i8"), ("reward", "f4"), ("next", "i8"), ("terminated", "?")])


class Recorded(IterableDataset[list[Tensor]]):
    """Batches of recorded steps, drawn with replacement, endlessly.

    Args:
        data: the steps.
        size: size of a batch.
        seed: seed of the draws.
    """

    def __init__(self, data: Transitions, size: int, seed: int) -> None:
        self._data = data
        self._size = size
        self._seed = seed

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
        size: size of a batch.
        epsilon: probability of a move at random.
        room: how many steps are remembered, the newest.
        seed: seed of all that is random.
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
        self._env = env
        self._table = table
        self._size = size
        self._epsilon = epsilon
        self._room = room
        self._seed = seed
        self._state: int | None = None

    def __iter__(self) -> Iterator[list[Tensor]]:
        chance = np.random.default_rng(self._seed)
        memory = np.zeros(self._room, dtype=_STEP)
        played = 0
        while True:
            moves = self._table().argmax(-1)  # (S,) moves of the newest network
            # The first batch needs a memory to draw from.
            for _ in range(self._size // _FRESH if played else self._size):
                step = self._step(moves, chance)
                if step is not None:
                    memory[played % self._room] = step  # the oldest makes room
                    played += 1
            drawn = memory[chance.integers(min(played, self._room), size=self._size)]
            # A column of a structured array is a view with gaps; torch takes arrays without.
            yield [torch.from_numpy(drawn[name].copy()) for name in Transitions._fields]

    def _step(
        self, moves: NDArray[np.integer], chance: np.random.Generator
    ) -> tuple[int, int, float, int, bool] | None:
        """One step of the running episode; None if time ran out, since that call moves no one."""
        if self._state is None:
            self._state, _ = self._env.reset(seed=int(chance.integers(2**31)))
        state = self._state
        action = int(chance.integers(4)) if chance.random() < self._epsilon else int(moves[state])
        following, reward, terminated, truncated, _ = self._env.step(action)
        self._state = None if terminated or truncated else following
        return None if truncated else (state, action, reward, following, terminated)


class GridPolicy:
    """Says the move of the highest Q in the cell that the environment tells in ``info["position"]``.

    Args:
        grid: grid of the maze.
        q: ``(S, 4)``.
    """

    def __init__(self, grid: Grid, q: NDArray[np.floating]) -> None:
        self._grid = grid
        self._q = q

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A move for each request."""
        return [Reply(ACTIONS[int(self._q[state].argmax())]) for state in self._states(requests)]

    def state_values(self, requests: Sequence[Request]) -> list[float]:
        """The highest Q in each state."""
        return [float(self._q[state].max()) for state in self._states(requests)]

    def _states(self, requests: Sequence[Request]) -> list[int]:
        states = []
        for request in requests:
            # A table of Q is of one maze and goal.
            if request.info.get("goal") != self._grid.layout.goal:
                raise UserError(f"this policy walks to {self._grid.layout.goal}, not to {request.info.get('goal')}")
            states.append(self._grid.state[request.info["position"]])
        return states


class _SymbolicQ(L.LightningModule):
    """A Q network, its target network, and how both learn from batches of steps."""

    name = "symbolic"

    def __init__(
        self,
        layout: str = "double_t_maze",
        hidden: int = 64,
        lr: float = 2e-3,
        gamma: float = 0.99,
        polyak: float = 0.05,
        batch_size: int = 128,
        cql_weight: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Build the networks.

        Args:
            layout: the maze, as for `lmrl.envs.maze.env.Maze`.
            hidden: width of the two hidden layers.
            lr: learning rate of Adam.
            gamma: discount.
            polyak: rate at which the target network moves in each step.
            batch_size: steps in a batch.
            cql_weight: weight of the conservative term.
            seed: seed of what is played and drawn.
        """
        super().__init__()
        self.save_hyperparameters()
        self.grid = Grid(find_layout(layout))
        self.features: Tensor
        self.register_buffer("features", torch.from_numpy(self.grid.features), persistent=False)
        self.q = nn.Sequential(
            nn.Linear(self.grid.features.shape[1], hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, len(ACTIONS)),
        )
        self.target_q = deepcopy(self.q).requires_grad_(False)

    @abstractmethod
    def batches(self) -> IterableDataset[list[Tensor]]:
        """Where steps come from: batches with the fields of `Transitions`."""

    def train_dataloader(self) -> DataLoader[list[Tensor]]:
        """Batches as they come, without workers: one would play with the policy of the beginning."""
        return DataLoader(self.batches(), batch_size=None, num_workers=0)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch of steps."""
        state, action, reward, following, terminated = batch
        cql_weight = self.hparams["cql_weight"]
        terms = symbolic_loss(
            q=self.q(self.features[state]),
            target_next=self.target_q(self.features[following]),
            action=action,
            reward=reward,
            terminated=terminated,
            gamma=self.hparams["gamma"],
            cql_weight=cql_weight,
        )
        logged = {"train/loss": terms.loss.detach(), f"{self.name}/td_loss": terms.td_loss.detach()}
        if cql_weight:
            logged[f"{self.name}/cql_loss"] = terms.cql_loss.detach()
        self.log_dict(logged, batch_size=len(state))
        return terms.loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Update the target network, once per step of the optimizer."""
        super().optimizer_step(*args, **kwargs)
        with torch.no_grad():
            for target, online in zip(self.target_q.parameters(), self.q.parameters(), strict=True):
                target.lerp_(online, self.hparams["polyak"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.q.parameters(), lr=self.hparams["lr"])

    def on_train_batch_end(self, *args: Any) -> None:
        """Log what the greedy policy would get, which for a table of this size is known exactly."""
        if self.global_step % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self.log("eval/maze_fo/return_mean", self.grid.greedy_return(self.table()))

    @torch.no_grad()
    def table(self) -> NDArray[np.float32]:
        """Q of all states, ``(S, 4)``."""
        table: NDArray[np.float32] = self.q(self.features).cpu().numpy()
        return table

    def policy(self, temperature: float = 0.0, max_new_tokens: int = 0) -> GridPolicy:
        """The greedy player of the maze of words; actions are whole, so ``max_new_tokens`` is not used.

        Raises:
            UserError: for a temperature above 0.
        """
        if temperature:
            raise UserError(f"temperature must be 0: policies of the grid are greedy; got {temperature}")
        return GridPolicy(self.grid, self.table())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say by which class it is loaded."""
        checkpoint["lmrl"] = {"class": class_name(type(self))}

    @staticmethod
    def arguments_of_checkpoint(arguments: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
        """Return the arguments that a checkpoint may choose: no layout in a file.

        Raises:
            UserError: it names one.
        """
        if arguments.get("layout", "umaze") not in LAYOUTS:
            raise UserError(
                f"{file} names the layout {arguments['layout']!r:.300}; a checkpoint may name {', '.join(LAYOUTS)}"
            )
        return arguments


class SymbolicDQN(_SymbolicQ):
    """Deep Q-learning by playing: epsilon-greedy steps go into a replay memory, batches are drawn from it."""

    name = "symbolic_dqn"

    def __init__(self, epsilon: float = 0.3, room: int = 20_000, **shared: Any) -> None:
        """Build it.

        Args:
            epsilon: probability of a move at random while playing.
            room: steps that the memory holds.
            **shared: layout, hidden, lr, gamma, polyak, batch_size, seed.
        """
        super().__init__(**shared)

    def batches(self) -> Replay:
        """From a memory that is played into."""
        settings = self.hparams
        env = GridMaze(self.grid.layout)
        size = settings["batch_size"]
        return Replay(env, self.table, size, settings["epsilon"], settings["room"], settings["seed"])


class SymbolicCQL(_SymbolicQ):
    """Conservative Q-learning from recorded steps alone."""

    name = "symbolic_cql"

    def __init__(self, data: str, cql_weight: float = 0.1, **shared: Any) -> None:
        """Build it.

        Args:
            data: file of a maze dataset; read when training begins.
            cql_weight: weight of the conservative term.
            **shared: layout, hidden, lr, gamma, polyak, batch_size, seed.
        """
        super().__init__(cql_weight=cql_weight, **shared)

    def batches(self) -> Recorded:
        """Yield batches of recorded steps."""
        steps = from_episodes(read_dataset(self.hparams["data"]), self.grid)
        return Recorded(steps, self.hparams["batch_size"], self.hparams["seed"])
