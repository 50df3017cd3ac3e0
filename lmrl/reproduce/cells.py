"""What a table consists of: cells, each a folder, the commands that fill it, and how far each is."""

import hashlib
import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from lmrl.errors import UserError
from lmrl.evaluation.results import read_json
from lmrl.models.checkpoints import read_checkpoint, weights_of

__all__ = [
    "DATA",
    "Cell",
    "Reached",
    "Standing",
    "Step",
    "digest",
    "is_done",
    "is_finished",
    "reached",
    "standing",
]

DATA = "data"
"""In place of an algorithm: the dataset and its own returns."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command and a digest of all that its outcome depends on."""

    name: str
    """``generate``, ``fit``, ``evaluate`` or ``evaluate_last``; its record in ``timing.json``."""
    words: tuple[str, ...]
    """After ``lmrl``."""
    recipe: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One folder of the table: a dataset, a scripted player, or a training and what it plays."""

    task: str
    algorithm: str
    seed: int
    folder: Path
    after: str | None
    """Name of the cell that has to be there before: the dataset, or whose weights it starts from."""
    steps: tuple[Step, ...]
    max_steps: int | None = None
    """Length of the training."""

    @property
    def name(self) -> str:
        """``maze_fo/ilql``, with other seeds than 0 ``maze_fo/ilql seed 1``."""
        return f"{self.task}/{self.algorithm}" + (f" seed {self.seed}" if self.seed else "")

    @property
    def fit(self) -> Step | None:
        """The training, if there is one."""
        return next((step for step in self.steps if step.name == "fit"), None)

    @property
    def recipe(self) -> str:
        """A digest of all steps."""
        return digest(*(step.recipe for step in self.steps))


def digest(*parts: Any) -> str:
    """Sixteen letters that change with any part."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def is_done(cell: Cell, step: Step) -> bool:
    """Whether a step was finished before, from the very same recipe."""
    if step.name.startswith("evaluate") and not _is_played(cell, step):
        return False
    record = read_json(cell.folder / "timing.json").get(step.name, {})
    return isinstance(record, dict) and record.get("recipe") == step.recipe and "seconds" in record


def is_finished(cell: Cell) -> bool:
    """Whether the whole cell was."""
    return read_json(cell.folder / "cell.json").get("recipe") == cell.recipe and all(
        _is_played(cell, step) for step in cell.steps if step.name == "evaluate"
    )


def _is_played(cell: Cell, step: Step) -> bool:
    """Whether the scores of an evaluation are there, and of the weights that the run has now."""
    scores = read_json(Path(_after(step, "--out")) / "scores.json")
    if cell.fit is None or not scores:
        return bool(scores)
    try:
        weights = weights_of(_after(step, "--policy"))
    except UserError:  # the checkpoints of a finished cell may be gone
        return True
    return weights is None or scores.get("provenance", {}).get("weights") == weights


def _after(step: Step, option: str) -> str:
    return step.words[step.words.index(option) + 1]


class Standing(Enum):
    """What is to be done about a training."""

    DONE = "nothing: it is finished"
    RESUME = "go on from last.ckpt"
    FRESH = "train from the beginning"


@dataclass(frozen=True, slots=True)
class Reached:
    """What a checkpoint says about itself."""

    step: int
    """Optimizer steps."""
    tokens: int | None
    """Action tokens learned from, each time anew; None if it was not counted."""
    weights: str | None
    """Hash of the weights; None if it does not say."""


def reached(checkpoint: Path) -> Reached | None:
    """How far a checkpoint is; None if there is none that can be read."""
    try:
        content = read_checkpoint(checkpoint) if checkpoint.is_file() else None
    except UserError:
        return None
    if content is None:
        return None
    entry = content["lmrl"]
    weights = entry.get("made_with", {}).get("weights")
    return Reached(int(content["global_step"]), entry.get("action_tokens"), weights)


def standing(cell: Cell, fit: Step) -> Standing:
    """What is to be done: a run of the same recipe goes on, any other that is in the folder does not count.

    One that was killed after its last step goes on too: `lmrl fit` then only writes what is missing beside it.
    """
    if is_done(cell, fit):
        return Standing.DONE
    ours = read_json(cell.folder / "timing.json").get("fit", {}).get("recipe") == fit.recipe
    return Standing.RESUME if ours and reached(cell.folder / "last.ckpt") is not None else Standing.FRESH
