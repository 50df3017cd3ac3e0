"""What has to run for a table of results: one cell per task and algorithm, in which order, by which commands."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lmrl.config_files import config_file
from lmrl.envs import registration
from lmrl.evaluation.results import read_json

__all__ = ["Cell", "Step", "default_episodes", "is_done", "plan"]

_ROUNDS = "lmrl.callbacks.RolloutCollection"


@dataclass(frozen=True, slots=True)
class Step:
    """One command and a digest of all that its outcome depends on."""

    name: str
    """``fit`` or ``evaluate``; its record in ``timing.json``."""
    words: tuple[str, ...]
    """After ``lmrl``."""
    recipe: str


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the table: train, then evaluate."""

    task: str
    algorithm: str
    folder: Path
    after: str | None
    """The algorithm of the same task whose weights it starts from."""
    max_steps: int | None
    """Length of the training, for the progress bar."""
    fit: Step
    evaluate: Step

    @property
    def name(self) -> str:
        """``maze_fo/ilql``."""
        return f"{self.task}/{self.algorithm}"


def default_episodes(task: str) -> int:
    """256, or as many as go through the starts that the task declares a whole number of times, at most eight."""
    starts = len(registration.task(task).starts)
    return starts * min(8, max(1, 256 // starts)) if starts else 256


def plan(
    tasks: Sequence[str],
    algorithms: Sequence[str],
    runs: Path,
    episodes: int | None,
    seed: int,
    overrides: Sequence[str],
    env: Mapping[str, Any] | None = None,
    few_games: int | None = None,
) -> list[Cell]:
    """The cells in an order in which each comes after the one it starts from; that one is added if it is missing.

    Args:
        tasks: names of tasks.
        algorithms: names of configuration files in ``configs/<task>/``.
        runs: folder for ``<task>/<algorithm>/``.
        episodes: of each evaluation; None: `default_episodes`.
        seed: of training and evaluation.
        overrides: further words for every ``fit``.
        env: arguments of the environment, in the data, in training and in evaluation.
        few_games: trainings play so many games per round and none beside; None leaves their callbacks as they are.

    Raises:
        UserError: an unknown task, or an algorithm without a configuration file.
    """
    cells: dict[str, Cell] = {}
    for task in tasks:
        count = default_episodes(task) if episodes is None else episodes
        for algorithm in algorithms:
            name = registration.task(task).name
            _add(cells, name, algorithm, runs, count, seed, tuple(overrides), dict(env or {}), few_games)
    return list(cells.values())


def is_done(cell: Cell, step: Step) -> bool:
    """Whether a step was finished before, from the very same recipe."""
    if step is cell.evaluate and not (cell.folder / "evaluation" / "scores.json").is_file():
        return False
    record = read_json(cell.folder / "timing.json").get(step.name, {})
    return isinstance(record, dict) and record.get("recipe") == step.recipe


def _add(
    cells: dict[str, Cell],
    task: str,
    algorithm: str,
    runs: Path,
    episodes: int,
    seed: int,
    overrides: tuple[str, ...],
    env: dict[str, Any],
    few_games: int | None,
) -> Cell:
    name = f"{task}/{algorithm}"
    if name in cells:
        return cells[name]
    shown = f"configs/{task}/{algorithm}.yaml"
    path = config_file(shown)
    config = OmegaConf.load(path)
    after = _starts_from(config, task, overrides)
    base = None if after is None else _add(cells, task, after, runs, episodes, seed, overrides, env, few_games)
    overrides = (*_playing(config, few_games), *overrides)
    folder = runs / task / algorithm
    fit = ["fit", "--config", shown, "--seed_everything", str(seed), *_elsewhere(runs, task, algorithm, after)]
    if env:
        fit.append(f"--data.init_args.env={json.dumps(env)}")
    evaluate = ["evaluate", task, "--policy", folder.as_posix(), "--episodes", str(episodes), "--seed", str(seed)]
    if env:
        evaluate += ["--env", *(f"{name}={value}" for name, value in env.items())]
    recipe = _digest(path.read_text(encoding="utf-8"), fit, overrides, base.fit.recipe if base else None)
    cells[name] = Cell(
        task=task,
        algorithm=algorithm,
        folder=folder,
        after=after,
        max_steps=_max_steps(config, overrides),
        fit=Step("fit", (*fit, *overrides), recipe),
        evaluate=Step("evaluate", (*evaluate, "--out", (folder / "evaluation").as_posix()), _digest(recipe, evaluate)),
    )
    return cells[name]


def _elsewhere(runs: Path, task: str, algorithm: str, after: str | None) -> list[str]:
    """Overrides for runs that are not kept where the configuration files put them."""
    if runs == Path("runs"):
        return []
    words = [f"--trainer.default_root_dir={(runs / task / algorithm).as_posix()}"]
    return words if after is None else [*words, f"--model.init_args.pretrained={(runs / task / after).as_posix()}"]


def _playing(config: Any, few_games: int | None) -> list[str]:
    """An override for the callbacks of a training that is to play few games: it saves itself, and plays rounds."""
    if few_games is None:
        return []
    kept: list[dict[str, Any]] = [{"class_path": "lmrl.callbacks.KeepLast"}]
    if any(entry.class_path == _ROUNDS for entry in _value(config, "trainer.callbacks") or ()):
        kept.append({"class_path": _ROUNDS, "init_args": {"episodes": few_games}})
    return [f"--trainer.callbacks={json.dumps(kept)}"]


def _starts_from(config: Any, task: str, overrides: Sequence[str]) -> str | None:
    """``bc`` for a configuration whose ``pretrained`` is ``runs/<task>/bc``."""
    key = "model.init_args.pretrained"
    if any(word.startswith(f"--{key}") for word in overrides):
        return None
    parts = Path(str(_value(config, key) or "")).parts
    return parts[2] if len(parts) == 3 and parts[:2] == ("runs", task) else None


def _max_steps(config: Any, overrides: Sequence[str]) -> int | None:
    given = [word.partition("=")[2] for word in overrides if word.startswith("--trainer.max_steps=")]
    steps = given[-1] if given else _value(config, "trainer.max_steps")
    return int(steps) if str(steps).isdigit() else None


def _value(config: Any, key: str) -> Any:
    try:
        return OmegaConf.select(config, key)
    except OmegaConfBaseException:  # it refers to a value that another file of the run holds
        return None


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
