"""Evaluations of one task side by side: means, differences and probabilities of improvement, with 95 % intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmrl.errors import UserError
from lmrl.evaluation.intervals import (
    FloatArray,
    Interval,
    Resampled,
    Sample,
    bootstrap_mean,
    improvement,
    improvement_interval,
    stratified_interval,
)
from lmrl.evaluation.played import EpisodeTable, read_table
from lmrl.evaluation.result_files import SCORE_KEYS, read_json
from lmrl.evaluation.scores import settings_told
from lmrl.models.checkpoints import has_run

__all__ = ["Comparison", "Played", "compare", "read_played"]

_SCORES = "scores.json"


@dataclass(frozen=True, slots=True)
class Played:
    """One evaluation as it lies on disk."""

    folder: Path
    scores: Mapping[str, Any]
    """Content of ``scores.json``."""
    table: EpisodeTable
    """A line for each episode, in the order of their starts."""

    def __repr__(self) -> str:
        """One line, without the episodes."""
        return f"<Played in {self.folder}: {len(self.table.returns)} episodes>"

    @property
    def settings(self) -> str:
        """``temperature 0.25`` and the like, ``as trained``, or nothing of players that were not trained."""
        made_with = self.scores.get("provenance", {})
        return settings_told(made_with.get("decoding", {})) or ("as trained" if made_with.get("weights") else "")

    @property
    def mean_interval(self) -> Interval:
        """Return the interval of the mean return."""
        return Interval(*self.scores["return_ci"])

    @property
    def games(self) -> tuple[Any, ...]:
        """Return the keys that determine start and seed of each episode. Equal keys mean equal games."""
        selection = bool(self.scores.get("provenance", {}).get("selection"))
        return self.scores["seed"], self.starts, selection, len(self.table.returns)

    @property
    def starts(self) -> int:
        """How many starts were taken in turn; 0: seeds decided."""
        return int(self.scores.get("starts", 0))


class Comparison(NamedTuple):
    """A player beside a base: intervals are over episodes, of these very players, had they played other games."""

    paired: bool
    """Both played the same games, so that what is compared is game by game."""
    difference: float
    """Mean return minus that of the base."""
    difference_interval: Interval
    improvement: float
    """The probability that a game returns more than one of the base (paired: than the same one); ties count half."""
    improvement_interval: Interval
    apart: bool
    """Whether the intervals of the two means have nothing in common."""

    @property
    def reading(self) -> str:
        """``higher`` or ``lower`` where the interval of the difference is on one side of 0."""
        low, high = self.difference_interval
        return "higher" if low > 0 else "lower" if high < 0 else "not told apart"


def read_played(place: Path) -> Played:
    """The evaluation of that name.

    Args:
        place: the folder that `lmrl evaluate` wrote, its ``scores.json``, or a run folder with ``evaluation`` in it.

    Raises:
        UserError: there is none, or one of its files is missing or broken.
    """
    folder = place.parent if place.name == _SCORES else place
    if not (folder / _SCORES).is_file() and (folder / "evaluation" / _SCORES).is_file():
        folder = folder / "evaluation"
    scores = read_json(folder / _SCORES)
    if not scores:
        if has_run(folder):
            there = folder / "evaluation" / _SCORES
            raise UserError(f"there is no {there}; make it with: lmrl evaluate --policy {folder}")
        raise UserError(f"there is no {folder / _SCORES}; make one with: lmrl evaluate --policy POLICY --out FOLDER")
    lacking = [key for key in SCORE_KEYS if key not in scores]
    if lacking:
        raise UserError(f"{folder / _SCORES}: lacks {', '.join(lacking)}")
    table = read_table(folder / "episodes.csv")
    if len(table.returns) != scores["episodes"]:
        count = len(table.returns)
        raise UserError(f"{folder}: episodes.csv has {count} episodes, {_SCORES} is of {scores['episodes']}")
    return Played(folder, scores, table)


def compare(played: Sequence[Played]) -> list[Comparison]:
    """Each evaluation but the first next to the first.

    Where both played the same games (task, seed, starts and number of episodes), differences are those of each game,
    and their interval is `bootstrap_mean`; else the two are resampled independently.

    Raises:
        UserError: fewer than two, or they are of different games: other tasks, or other settings of the environment.
    """
    if len(played) < 2:
        raise UserError(f"compare needs two evaluations or more, got {len(played)}")
    base, *others = played
    for other in others:
        for what, ours, theirs in (
            ("task", base.scores["task"], other.scores["task"]),
            ("settings of the environment", _env(base), _env(other)),
        ):
            if ours != theirs:
                raise UserError(f"{base.folder} and {other.folder} are not of the same {what}: {ours} and {theirs}")
    return [_compare(other, base) for other in others]


def _env(played: Played) -> str:
    given = played.scores.get("provenance", {}).get("env") or {}
    return ", ".join(f"{name}={value}" for name, value in sorted(given.items())) or "the task's own"


def _compare(ours: Played, base: Played) -> Comparison:
    paired = ours.games == base.games
    samples = [Sample(one.table.returns.tolist(), one.starts) for one in (ours, base)]
    if paired:
        differences = ours.table.returns - base.table.returns
        wins = (np.sign(differences) + 1) / 2
        strata = [place % base.starts for place in range(len(wins))] if base.starts else None
        interval = bootstrap_mean(differences.tolist(), strata=strata)
        chance = float(wins.mean())
        chances = bootstrap_mean(wins.tolist(), strata=strata)
    else:
        interval = stratified_interval(samples, _gap)
        both = [samples[0]], [samples[1]], [(0, 0)]
        chance = improvement(*both)
        chances = improvement_interval(*both)
    difference = float(ours.table.returns.mean() - base.table.returns.mean())
    (low, high), (least, most) = ours.mean_interval, base.mean_interval
    return Comparison(paired, difference, interval, chance, chances, high < least or low > most)


def _gap(parts: list[Resampled]) -> FloatArray:
    """(R,): mean of the first sample minus that of the second."""
    first, second = (part.mean() for part in parts)
    return first - second
