"""DQN and CQL on the grid, as LightningModules."""

from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from lmrl.data.reading import read_dataset
from lmrl.envs.layouts import LAYOUTS, find_layout
from lmrl.errors import UserError
from lmrl.modules.saving import class_name
from lmrl.symbolic.grid import ACTIONS, Grid, GridMaze
from lmrl.symbolic.losses import symbolic_loss
from lmrl.symbolic.policy import GridPolicy
from lmrl.symbolic.replay import Recorded, Replay
from lmrl.symbolic.transitions import from_episodes

__all__ = ["SymbolicCQL", "SymbolicDQN"]


class _SymbolicQ(L.LightningModule):
    """A Q network, its slow copy, and how both learn from batches of steps."""

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
            layout: the maze, as for `lmrl.envs.maze.Maze`.
            hidden: width of the two hidden layers.
            lr: learning rate of Adam.
            gamma: discount.
            polyak: share of the way that the slow copy goes in each step.
            batch_size: steps in a batch.
            cql_weight: weight of the conservative term.
            seed: of what is played and drawn.
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
        self.slow_q = deepcopy(self.q).requires_grad_(False)

    @abstractmethod
    def batches(self) -> IterableDataset[list[Tensor]]:
        """Where steps come from: batches with the fields of `Transitions`."""

    def train_dataloader(self) -> DataLoader[list[Tensor]]:
        """Batches as they come, without workers: one would play with the policy of the beginning."""
        return DataLoader(self.batches(), batch_size=None, num_workers=0)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch of steps."""
        state, action, reward, following, terminated = batch
        settings = self.hparams
        terms = symbolic_loss(
            self.q(self.features[state]),
            self.slow_q(self.features[following]),
            *(action, reward, terminated, settings["gamma"], settings["cql_weight"]),
        )
        logged = {"train/loss": terms.loss.detach(), f"{self.name}/td_loss": terms.td_loss.detach()}
        if settings["cql_weight"]:
            logged[f"{self.name}/cql_loss"] = terms.cql_loss.detach()
        self.log_dict(logged, batch_size=len(state))
        return terms.loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Let the slow copy follow, once per step of the optimizer."""
        super().optimizer_step(*args, **kwargs)
        with torch.no_grad():
            for slow, fast in zip(self.slow_q.parameters(), self.q.parameters(), strict=True):
                slow.lerp_(fast, self.hparams["polyak"])

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
        """What a checkpoint may choose among its arguments: no layout in a file.

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
        env, size = GridMaze(self.grid.layout), settings["batch_size"]
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
        """Of recorded steps."""
        steps = from_episodes(read_dataset(self.hparams["data"]), self.grid)
        return Recorded(steps, self.hparams["batch_size"], self.hparams["seed"])
