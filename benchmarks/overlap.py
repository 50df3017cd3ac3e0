"""Rounds that are played while the trainer learns, against rounds one after the other: episodes per second.

PPO and GRPO on Twenty Questions, with the small network of filtered BC and, where ``make smollm2`` has made it, with
adapters on SmolLM2-135M. One thread for learning and one for playing. At best, a round takes as long as the longer of
playing and learning did in the run without overlap. The first rounds are left out: then the worker starts, and nothing
is learned yet.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from lightning.pytorch import Callback, Trainer, seed_everything

from benchmarks.row import Row
from lmrl.callbacks import RolloutCollection
from lmrl.datamodules import OnlineDataModule
from lmrl.modules import GRPO, PPO
from lmrl.modules.policy_gradient import PolicyGradient
from lmrl.types import Episode

__all__ = ["run"]

TASK = "twenty_questions"
SMOLLM2 = Path("models/smollm2-135m")
LEFT_OUT = 2  # rounds


class Size(NamedTuple):
    """A model, and rounds that suit it."""

    name: str
    model: dict[str, Any]
    data: dict[str, Any]
    episodes: int
    slots: int
    rounds: int
    """Rounds that are played, with those that are left out."""


SMALL = Size("small network", {"pretrained": f"zoo:{TASK}/filtered_bc"}, {"batch_size": 64}, 256, 128, 8)
LARGE = Size(
    "SmolLM2",
    {"pretrained": str(SMOLLM2), "lora": {"r": 16}},
    {"batch_size": 4, "rendering": "chat"},
    episodes=8,
    slots=8,
    rounds=4,
)


class _TimedRounds(RolloutCollection):
    """Notes when each round was asked for, and when it was there."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.asked: list[float] = []
        self.there: list[float] = []

    def collect(self, number: int) -> list[Episode]:
        self.asked.append(time.perf_counter())
        episodes = super().collect(number)
        self.there.append(time.perf_counter())
        return episodes


class _Until(Callback):
    """Ends a run after some rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        trainer.should_stop = data.round > self.rounds


class Pace(NamedTuple):
    """Median seconds of a round."""

    playing: float
    learning: float
    whole: float


def pace(kind: type[PolicyGradient], size: Size, max_staleness: int) -> Pace:
    """Return the pace of a run."""
    seed_everything(5, verbose=False)
    settings: dict[str, Any] = {"lr": 1e-4, "lr_schedule": "constant", "warmup_steps": 0, "kl_weight": 0.0}
    if kind is PPO:
        settings |= {"gamma": 1.0, "gae_lambda": 1.0, "critic_warmup_rounds": 0}
    module = kind(**size.model, **settings)
    data = OnlineDataModule(TASK, epochs=1, max_tokens=900, **size.data)
    group_size = 8 if kind is GRPO else 1
    playing = _TimedRounds(
        episodes=size.episodes, slots=size.slots, group_size=group_size, max_staleness=max_staleness, piece=size.slots
    )
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            max_steps=10**6,
            accelerator="cpu",
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
            callbacks=[playing, _Until(size.rounds)],
        )
        trainer.fit(module, data)
    # A round begins when it is asked for, and ends when the next one is.
    played = []
    learned = []
    whole = []
    for index in range(LEFT_OUT, size.rounds):
        played.append(playing.there[index] - playing.asked[index])
        learned.append(playing.asked[index + 1] - playing.there[index])
        whole.append(playing.asked[index + 1] - playing.asked[index])
    return Pace(median(played), median(learned), median(whole))


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks overlap`."""
    sizes = [SMALL, LARGE] if SMOLLM2.is_dir() else [SMALL]
    for size in sizes:
        for kind in (PPO, GRPO):
            name = f"{kind.__name__}, {size.name}"
            alone = pace(kind, size, 0)
            ahead = pace(kind, size, 1)
            share = alone.playing / alone.whole
            ideal = max(alone.playing, alone.learning)
            yield Row(f"{name}: share of the time in which a round is played", 100 * share, "%")
            speeds = [size.episodes / one.whole for one in (alone, ahead)]
            yield Row(f"{name}: episodes per second without overlap", speeds[0], "episodes/s", digits=2)
            yield Row(f"{name}: episodes per second with overlap", speeds[1], "episodes/s", "higher", digits=2)
            yield Row(f"{name}: with overlap / without", alone.whole / ahead.whole, "x", "higher", digits=2)
            asked = ">= 90 %"
            yield Row(f"{name}: with overlap, of the ideal", 100 * ideal / ahead.whole, "%", "higher", asked)
