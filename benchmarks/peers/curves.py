"""Learning curves of two sides that start from the same policy: return over played episodes and over seconds."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, TypeAlias

import lightning as L
import torch

from benchmarks.peers.beside import OURS
from benchmarks.row import Row
from lmrl.callbacks import RolloutCollection
from lmrl.checkpoints.zoo import zoo_policy
from lmrl.datamodules import OnlineDataModule
from lmrl.evaluation.intervals import student_mean
from lmrl.models.lm import build_lm
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import GRPO
from lmrl.policies.lm import stop_ids
from lmrl.tokens.encoding import Encoder, Window

__all__ = ["Curve", "WholeHistory", "learned", "ours", "quiet_trainer", "seconds_to", "start_of"]

GROUPS = 16
GROUP_SIZE = 8
EPISODES = GROUPS * GROUP_SIZE
"""The episodes of a round."""
SEEDS = (0, 1, 2)
POLICY = "filtered_bc"
"""The policy of the zoo that both sides start from."""
SMOOTH = 4
"""The number of rounds whose mean return is compared with a wanted return."""

Curve: TypeAlias = list[tuple[float, float]]
"""After each round: seconds since the training began, and the mean return of the episodes of the round."""
Train: TypeAlias = Callable[[str, Path, Path, int, int], Curve]
"""A function from a task, the folder of the start, a folder of its own, a seed and a number of rounds."""


class WholeHistory(OnlineDataModule):
    """A datamodule whose rounds are read and learned with whole histories."""

    def window(self) -> Window:
        """Return a window over whole histories."""
        return Window(None, super().window().tokens)


def quiet_trainer(folder: Path, steps: int, callbacks: list[L.Callback]) -> L.Trainer:
    """Return a trainer of Lightning that clips gradients at 1 and writes and prints nothing."""
    return L.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_steps=steps,
        gradient_clip_val=1.0,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=callbacks,
    )


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

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._began = process_time()  # the first round is played before the training starts

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        played = float(trainer.callback_metrics["rollout/return_mean"])
        self.curve.append((process_time() - self._began, played))


def ours(task: str, start: Path, folder: Path, seed: int, rounds: int, **settings: Any) -> Curve:
    """Train with lmrl.

    Args:
        task: the task.
        start: the folder of the policy to start from.
        folder: the folder of the run.
        seed: the training seed.
        rounds: the number of rounds, each with one step.
        **settings: of `lmrl.modules.GRPO`, such as its learning rate.
    """
    L.seed_everything(seed, verbose=False)
    module = GRPO(
        pretrained=str(start),
        lr_schedule="constant",
        warmup_steps=0,
        adam_beta2=0.999,
        kl_weight=0.0,
        loss_agg_mode="seq-mean-token-mean",
        **settings,
    )
    noted = _Rounds()
    collection = RolloutCollection(episodes=EPISODES, slots=EPISODES, group_size=GROUP_SIZE)
    trainer = quiet_trainer(folder, rounds, [collection, noted])
    trainer.fit(module, WholeHistory(task=task, batch_size=EPISODES, seed=seed))
    return noted.curve


def seconds_to(curve: Curve, wanted: float) -> float | None:
    """Return the seconds until the mean return of `SMOOTH` rounds reaches a wanted return; None if it never does."""
    for number in range(SMOOTH, len(curve) + 1):
        if mean(played for _, played in curve[number - SMOOTH : number]) >= wanted:
            return curve[number - 1][0]
    return None


def learned(path: Path, rounds: Mapping[str, int], sides: Mapping[str, Train]) -> Iterator[Row]:
    """Train each side with each seed on each task, and yield the rows that compare them.

    Args:
        path: file of the curves. Trainings that it holds are not repeated.
        rounds: of a training, by task.
        sides: functions that train, by name: `OURS` and another.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    kept: dict[str, dict[str, list[Curve]]] = {}
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
    for task, number_of_rounds in rounds.items():
        curves = kept.setdefault(task, {name: [] for name in sides})
        with TemporaryDirectory() as place:
            start = start_of(task, Path(place) / "start")
            for number, seed in enumerate(SEEDS):
                for name, train in sides.items():
                    if len(curves[name]) == number:
                        curves[name].append(train(task, start, Path(place) / name, seed, number_of_rounds))
                        path.write_text(json.dumps(kept) + "\n", encoding="utf-8")
        yield from _rows(task, curves)


def _rows(task: str, curves: dict[str, list[Curve]]) -> Iterator[Row]:
    (other,) = curves.keys() - {OURS}
    ends: dict[str, list[float]] = {}
    for name, its_curves in curves.items():
        ends[name] = [_mean_return(curve[-len(curve) // 4 :]) for curve in its_curves]
        shown = ", ".join(f"{end:.2f}" for end in ends[name])
        yield Row(f"{task}, return in the last quarter, {name}", mean(ends[name]), "", "higher", shown=shown)
    differences = [mine - its for mine, its in zip(ends[OURS], ends[other], strict=True)]
    low, high = student_mean(differences)
    shown = f"{mean(differences):+.2f} [{low:.2f}, {high:.2f}]"
    yield Row(f"{task}, difference, paired by seed", mean(differences), asked="interval contains 0", shown=shown)

    # The wanted return is half of what the side that gained less has gained.
    began = mean(_mean_return(curve[:SMOOTH]) for its_curves in curves.values() for curve in its_curves)
    wanted = began + (min(mean(ends[OURS]), mean(ends[other])) - began) / 2
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
        ratio = totals[other] / totals[OURS]
        yield Row(f"{task}, seconds of {other} / of {OURS}", ratio, "x", "higher", "> 1", digits=2)


def _mean_return(rounds: Sequence[tuple[float, float]]) -> float:
    return mean(played for _, played in rounds)
