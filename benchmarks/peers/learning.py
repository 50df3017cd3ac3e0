"""Learning curves of GRPO compared with those of TRL's `GRPOTrainer`: return over played episodes and over seconds.

Both sides start from the same policy of the zoo and learn with the same settings: rounds of 16 starts with 8 episodes
each, sampled at temperature 1 with whole histories; one step of AdamW on each round, without a KL penalty, gradients
clipped at 1; the mean over episodes of the mean over their action tokens, with advantages divided by the spread of the
group. `benchmarks.peers.training` describes how both train on the same kind of sequence.

Two settings differ. TRL divides by the sample's standard deviation, lmrl by the population's: its advantages are 7 %
larger, which hardly matters to AdamW. The starts come from the same distribution, but are not the same ones.

Seconds are those that the process computes on one thread. They still grow when other programs share the caches: run
this on an idle machine.

A run takes more than an hour, so each training is kept in `CURVES` and not repeated. Delete that file to start over.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any

from transformers import TrainerCallback

from benchmarks.peers import curves, training
from benchmarks.peers.beside import OURS
from benchmarks.peers.curves import EPISODES, GROUP_SIZE, GROUPS, Curve
from benchmarks.peers.training import TRL, Bare, bare_tokenizer, trl_trainer
from benchmarks.row import Row
from lmrl.envs.registry import task as find_task
from lmrl.models.tokenizer import load_tokenizer

__all__ = ["CURVES", "ours", "run", "theirs"]

PACKAGES = training.PACKAGES
LR = 3e-4
TASKS: dict[str, tuple[int, int]] = {"wordle": (6, 200), "twenty_questions": (20, 40)}
"""Turns of an episode, and rounds."""
CURVES = Path(__file__).parents[1] / "results" / "learning.json"

ours = partial(curves.ours, lr=LR, weight_decay=0.0)


class _Steps(TrainerCallback):
    def __init__(self) -> None:
        self.returns: list[float] = []
        self.curve: Curve = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._began = process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.curve.append((process_time() - self._began, self.returns[-1]))


def theirs(task: str, start: Path, folder: Path, seed: int, rounds: int) -> Curve:
    """Train with TRL."""
    turns, _ = TASKS[task]
    steps = _Steps()

    def returns(*args: Any, **kwargs: Any) -> list[float]:
        found = training.episode_return(*args, **kwargs)
        steps.returns.append(mean(found))
        return found

    first_start = 1_000_000 * (1 + seed)  # apart from the starts of evaluation
    trainer = trl_trainer(
        start,
        bare_tokenizer(load_tokenizer(str(start))),
        lambda: Bare(task, {}),
        range(first_start, first_start + GROUPS * rounds),
        steps,
        reward=returns,
        output_dir=str(folder),
        seed=seed,
        max_steps=rounds,
        num_generations=GROUP_SIZE,
        per_device_train_batch_size=EPISODES,
        max_completion_length=900,
        max_tool_calling_iterations=turns - 1,
        generation_kwargs={"max_new_tokens": find_task(task).max_action_tokens},
        beta=0.0,
        learning_rate=LR,
        weight_decay=0.0,
        max_grad_norm=1.0,
    )
    trainer.train()
    return steps.curve


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks.peers learning`. The curves go to `CURVES`."""
    rounds = {task: number for task, (_, number) in TASKS.items()}
    return curves.learned(CURVES, rounds, {OURS: ours, TRL: theirs})
