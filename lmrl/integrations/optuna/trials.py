"""The trials of a sweep: what each trains and plays, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from lmrl.evaluation.result_json import read_json
from lmrl.integrations.optuna.space import Space, Value, as_words
from lmrl.reproduce.plan import Cell, Step, digest, env_words, is_done
from lmrl.reproduce.processes import Processes
from lmrl.reproduce.schedule import train
from lmrl.utils.configuration import configuration, max_steps_of, value_at

__all__ = ["GRID", "SAMPLERS", "Sweep", "Trial", "best_of", "cell_of", "run_trial"]

GRID = "grid"
SAMPLERS = ("tpe", "random", GRID)

_GAMES = 20_000
"""Seeds of the games by which trials are scored begin here: `InteractiveEvaluation`, by which the checkpoint of a trial
was chosen, and `lmrl tune` begin elsewhere."""
_SCORES = ("return_mean", "return_ci", "normalized", "success_rate", "episodes")


@dataclass(frozen=True, slots=True)
class Sweep:
    """Settings of a sweep: what is searched, and how a trial is made."""

    configs: Sequence[str]
    """Configuration files of ``lmrl fit``, in their order."""
    space: Space
    out: Path
    sampler: str = "tpe"
    """One of `SAMPLERS`."""
    seed: int = 0
    """Seed of the search, of every training and of the games."""
    episodes: int = 256
    """Games of a trial."""
    overrides: Sequence[str] = ()
    """Further words for every ``fit``."""

    @property
    def words(self) -> list[str]:
        """The ``fit`` of every trial, but for its folder and the values that it tries."""
        files = []
        for file in self.configs:
            files += ["--config", file]
        return ["fit", *files, "--seed_everything", str(self.seed), *self.overrides]

    @property
    def recipe(self) -> str:
        """A digest of all that the trials depend on."""
        merged = OmegaConf.to_container(configuration(self.words), resolve=False)
        # A study on disk is resumed only by a sweep with the same recipe.
        space = dict(zip(self.space, map(repr, self.space.values()), strict=True))
        return digest(merged, self.words, space, self.sampler, self.seed, self.episodes)


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one setting."""

    number: int
    settings: Mapping[str, Value]
    scores: Mapping[str, Any]
    """``return_mean``, ``return_ci``, ``normalized``, ``success_rate`` and ``episodes``; empty if it failed or runs."""
    error: str = ""
    """Why it failed, with the end of its log."""

    @property
    def state(self) -> str:
        """``done``, ``failed`` or ``unfinished``."""
        if self.scores:
            return "done"
        return "failed" if self.error else "unfinished"


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The one with the highest mean return, the first among equals; None if none is done."""
    done = [trial for trial in trials if trial.scores]
    return max(done, key=lambda trial: float(trial.scores["return_mean"]), default=None)


def cell_of(sweep: Sweep, number: int, settings: Mapping[str, Value]) -> Cell:
    """The training and the games of a trial, in ``trials/0007`` of the sweep's folder."""
    folder = sweep.out / "trials" / f"{number:04d}"
    words = [*sweep.words, f"--trainer.default_root_dir={folder.as_posix()}", *as_words(settings)]
    merged = configuration(words)
    fit = Step("fit", tuple(words), digest(OmegaConf.to_container(merged, resolve=False), words))
    env = value_at(merged, "data.init_args.env")
    played = ["evaluate", "--policy", folder.as_posix(), "--out", (folder / "selection").as_posix(), "--selection"]
    played += ["--episodes", str(sweep.episodes), "--seed", str(_GAMES + sweep.seed)]
    # A policy is scored in the environment of its training, which `evaluate` does not read from the run.
    played += env_words(dict(env)) if env else []
    step = Step("evaluate_selection", tuple(played), digest(fit.recipe, played))
    return Cell("trial", f"{number:04d}", sweep.seed, folder, None, (fit, step), max_steps_of(merged))


def run_trial(cell: Cell, processes: Processes) -> dict[str, Any]:
    """Train from where the trial stands, let it play, and return its scores.

    Raises:
        CommandFailed: with the last lines of its output.
    """
    train(cell, processes)
    play = cell.steps[-1]
    if not is_done(cell, play):
        processes.run(play, cell.folder)
    scores = read_json(cell.folder / "selection" / "scores.json")
    return {name: scores[name] for name in _SCORES}
