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

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, TypeAlias

import lightning as L
import torch
from transformers import TrainerCallback

from benchmarks.peers import training
from benchmarks.peers.beside import OURS
from benchmarks.peers.training import TRL, Bare, WholeHistory, bare_tokenizer, quiet_trainer, trl_trainer
from benchmarks.row import Row
from lmrl.callbacks import RolloutCollection
from lmrl.checkpoints.zoo import zoo_policy
from lmrl.envs.registry import task as find_task
from lmrl.evaluation.intervals import student_mean
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import GRPO
from lmrl.policies.lm import stop_ids
from lmrl.tokens.encoding import Encoder

__all__ = ["CURVES", "Curve", "ours", "run", "seconds_to", "start_of", "theirs"]

PACKAGES = training.PACKAGES
GROUPS = 16
GROUP_SIZE = 8
EPISODES = GROUPS * GROUP_SIZE
LR = 3e-4
SEEDS = (0, 1, 2)
TASKS: dict[str, tuple[int, int]] = {"wordle": (6, 200), "twenty_questions": (20, 40)}
"""Turns of an episode, and rounds."""
POLICY = "filtered_bc"
"""The policy of the zoo that both sides start from."""
SMOOTH = 4
"""The number of rounds whose mean return is compared with a wanted return."""
CURVES = Path(__file__).parents[1] / "results" / "learning.json"

Curve: TypeAlias = list[tuple[float, float]]
"""After each round: seconds since the training began, and the mean return of the episodes of the round."""


def start_of(task: str, folder: Path) -> Path:
    """Write the policy that both sides start from, in float32 and without dropout."""
    source = zoo_policy(f"zoo:{task}/{POLICY}").folder
    tokenizer = load_tokenizer(str(source))
    model = build_lm(str(source), {}, len(tokenizer), dtype=torch.float32)
    model.generation_config.eos_token_id = sorted(stop_ids(Encoder(tokenizer)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class _Rounds(L.Callback):
    def __init__(self) -> None:
        self.curve: Curve = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._began = process_time()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        played = float(trainer.callback_metrics["rollout/return_mean"])
        self.curve.append((process_time() - self._began, played))


def ours(task: str, start: Path, folder: Path, seed: int, rounds: int) -> Curve:
    """Train with lmrl."""
    L.seed_everything(seed, verbose=False)
    module = GRPO(
        pretrained=str(start),
        lr=LR,
        lr_schedule="constant",
        warmup_steps=0,
        weight_decay=0.0,
        adam_beta2=0.999,
        kl_weight=0.0,
        loss_agg_mode="seq-mean-token-mean",
    )
    noted = _Rounds()
    collection = RolloutCollection(episodes=EPISODES, slots=EPISODES, group_size=GROUP_SIZE)
    trainer = quiet_trainer(folder, rounds, [collection, noted])
    trainer.fit(module, WholeHistory(task=task, batch_size=EPISODES, seed=seed))
    return noted.curve


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


def seconds_to(curve: Curve, wanted: float) -> float | None:
    """Return the seconds until the mean return of `SMOOTH` rounds reaches a wanted return; None if it never does."""
    for number in range(SMOOTH, len(curve) + 1):
        if mean(played for _, played in curve[number - SMOOTH : number]) >= wanted:
            return curve[number - 1][0]
    return None


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks.peers learning`. The curves go to `CURVES`."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    sides: dict[str, Callable[[str, Path, Path, int, int], Curve]] = {OURS: ours, TRL: theirs}
    kept: dict[str, dict[str, list[Curve]]] = {}
    if CURVES.is_file():
        kept = json.loads(CURVES.read_text(encoding="utf-8"))
    for task, (_, rounds) in TASKS.items():
        curves = kept.setdefault(task, {name: [] for name in sides})
        with TemporaryDirectory() as place:
            start = start_of(task, Path(place) / "start")
            for number, seed in enumerate(SEEDS):
                for name, train in sides.items():
                    if len(curves[name]) == number:
                        curves[name].append(train(task, start, Path(place) / name, seed, rounds))
                        CURVES.write_text(json.dumps(kept) + "\n", encoding="utf-8")
        yield from _rows(task, curves)


def _rows(task: str, curves: dict[str, list[Curve]]) -> Iterator[Row]:
    ends: dict[str, list[float]] = {}
    for name, its_curves in curves.items():
        ends[name] = [_mean_return(curve[-len(curve) // 4 :]) for curve in its_curves]
        shown = ", ".join(f"{end:.2f}" for end in ends[name])
        yield Row(f"{task}, return in the last quarter, {name}", mean(ends[name]), "", "higher", shown=shown)
    differences = [one - other for one, other in zip(ends[OURS], ends[TRL], strict=True)]
    low, high = student_mean(differences)
    shown = f"{mean(differences):+.2f} [{low:.2f}, {high:.2f}]"
    yield Row(f"{task}, difference, paired by seed", mean(differences), asked="interval contains 0", shown=shown)

    # The wanted return is half of what the side that gained less has gained.
    began = mean(_mean_return(curve[:SMOOTH]) for its_curves in curves.values() for curve in its_curves)
    wanted = began + (min(mean(ends[OURS]), mean(ends[TRL])) - began) / 2
    needed: dict[str, list[float | None]] = {}
    for name, its_curves in curves.items():
        needed[name] = [seconds_to(curve, wanted) for curve in its_curves]
        shown = ", ".join("never" if second is None else f"{second:.0f}" for second in needed[name])
        yield Row(f"{task}, seconds until rounds return {wanted:.2f}, {name}", None, "s", "lower", shown=f"{shown} s")
    totals: dict[str, float] = {}
    for name, values in needed.items():
        reached = [value for value in values if value is not None]
        if len(reached) == len(values):
            totals[name] = sum(reached)
    if len(totals) == len(needed):
        ratio = totals[TRL] / totals[OURS]
        yield Row(f"{task}, seconds of TRL / of lmrl", ratio, "x", "higher", "> 1", digits=2)


def _mean_return(rounds: Sequence[tuple[float, float]]) -> float:
    return mean(played for _, played in rounds)
