"""The gradient noise scale that a run logs, against a direct computation on the same games.

The policy is filtered BC of Twenty Questions from the zoo, the algorithm PPO, and the learning rate so small that no
weight moves. One run logs the estimate from steps of 128 games. Another takes one game per step, so that the gradients
of all games are known one by one.
"""

import time
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from benchmarks.row import Row
from lmrl.callbacks import RolloutCollection
from lmrl.datamodules import OnlineDataModule
from lmrl.modules import PPO
from lmrl.training.noise_scale import NoiseScale

__all__ = ["run"]

TASK = "twenty_questions"
GAMES = 2_048
BATCH = 128


class _Gradients(Callback):
    """Sums the gradients of single games, and their squared norms."""

    def __init__(self) -> None:
        self.sum: NDArray[np.float64] | float = 0.0
        self.count = 0
        self.squared_norms = 0.0

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        parts: list[Tensor] = []
        for parameter in pl_module.model.parameters():
            if parameter.grad is not None:
                parts.append(parameter.grad.flatten())
        gradient = torch.cat(parts).double().numpy()
        self.sum = self.sum + gradient
        self.count += 1
        self.squared_norms += float(gradient @ gradient)

    @property
    def noise_scale(self) -> float:
        """tr(Sigma) / |G|^2, both without bias: |G|^2 is the mean product of the gradients of two different games."""
        pairs = self.count * (self.count - 1)
        signal = (float(np.square(self.sum).sum()) - self.squared_norms) / pairs
        return (self.squared_norms / self.count - signal) / signal


class _Clock(Callback):
    """The seconds of all steps, and of what `NoiseScale` computes in them."""

    def __init__(self) -> None:
        self.steps = 0.0
        self._began = 0.0

    def on_train_batch_start(self, *args: Any) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, *args: Any) -> None:
        self.steps += time.perf_counter() - self._began


class _TimedNoiseScale(NoiseScale):
    """`NoiseScale` with a clock."""

    seconds = 0.0

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        began = time.perf_counter()
        super().on_before_optimizer_step(trainer, pl_module, optimizer)
        self.seconds += time.perf_counter() - began


class _StandingPPO(PPO):
    """PPO whose own `NoiseScale` is left out where the trainer has one."""

    def configure_callbacks(self) -> list[Callback]:
        return [callback for callback in super().configure_callbacks() if not isinstance(callback, NoiseScale)]


def train(games: int, batch: int, callbacks: list[Callback]) -> None:
    """Play a round and learn from it once, with steps that move nothing."""
    seed_everything(5, verbose=False)
    module = _StandingPPO(
        pretrained=f"zoo:{TASK}/filtered_bc",
        lr=1e-12,
        lr_schedule="constant",
        warmup_steps=0,
        gamma=1.0,
        gae_lambda=1.0,
        kl_weight=0.0,
        critic_warmup_rounds=0,
    )
    data = OnlineDataModule(TASK, epochs=1, batch_size=batch, max_tokens=900)
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            max_steps=games // batch,
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            callbacks=[RolloutCollection(episodes=games, slots=128), *callbacks],
        )
        trainer.fit(module, data)


def run(games: int = GAMES) -> Iterator[Row]:
    """Rows for `python -m benchmarks noise_scale`."""
    logged = _TimedNoiseScale()
    clock = _Clock()
    train(games, BATCH, [logged, clock])
    gradients = _Gradients()
    train(games, 1, [gradients])
    direct = gradients.noise_scale
    estimate = logged.value.item()
    yield Row(f"{games:,} games of {TASK}: noise scale, gradients of single games", direct, "games", digits=0)
    yield Row(f"{games:,} games of {TASK}: noise scale, as logged", estimate, "games", digits=0)
    yield Row("logged / single games", estimate / direct, "x", asked="0.8 to 1.2", digits=2)
    yield Row("share of a step that it takes", 100 * logged.seconds / clock.steps, "%", "lower", "<= 2 %", 2)
