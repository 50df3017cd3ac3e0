"""Comparison of evaluations of one task: differences and probabilities of improvement, with 95 % intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lmrl.checkpoints.run_files import has_run
from lmrl.checkpoints.zoo import ZOO_PREFIX
from lmrl.errors import UserError
from lmrl.evaluation.episode_table import EpisodeTable, read_table
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
from lmrl.evaluation.result_json import SCORE_KEYS, read_json
from lmrl.evaluation.scores import describe_settings

__all__ = ["Comparison", "Played", "compare", "read_played"]

_SCORES = "scores.json"


@dataclass(frozen=True, slots=True)
class Played:
    """One evaluation, read from its folder."""

    folder: Path
    scores: Mapping[str, Any]
    """Content of ``scores.json``."""
    table: EpisodeTable
    """A row for each episode, in the order of their starts."""

    def __repr__(self) -> str:
        """One line, without the episodes."""
        return f"<Played in {self.folder}: {len(self.table.returns)} episodes>"

    @property
    def settings(self) -> str:
        """Return the decoding settings: ``temperature 0.25``, ``as trained``, or nothing for scripted policies."""
        made_with = self.scores.get("provenance", {})
        return describe_settings(made_with.get("decoding", {})) or ("as trained" if made_with.get("weights") else "")

    @property
    def is_selection(self) -> bool:
        """Return whether these are the games by which settings are chosen."""
        return bool(self.scores.get("provenance", {}).get("selection"))

    @property
    def mean_interval(self) -> Interval:
        """Return the interval of the mean return."""
        return Interval(*self.scores["return_ci"])

    @property
    def games(self) -> tuple[Any, ...]:
        """Return what determines the start and the seed of each episode: if it is equal, the games are the same."""
        return self.scores["seed"], self.starts, self.is_selection, len(self.table.returns)

    @property
    def starts(self) -> int:
        """Return the number of fixed starts, which the episodes took in turn; 0: seeds decided."""
        return int(self.scores.get("starts", 0))


class Comparison(NamedTuple):
    """A policy compared with a base. Intervals are over episodes: the same two policies in other games."""

    paired: bool
    """Whether both played the same games, so that they are compared game by game."""
    difference: float
    """Mean return minus that of the base."""
    difference_interval: Interval
    improvement: float
    """The probability that a game returns more than one of the base (paired: than the same game); ties count half."""
    improvement_interval: Interval
    apart: bool
    """Whether the intervals of the two means do not overlap."""
    episodes: int
    """The number of episodes of the shorter evaluation."""
    same_starts: bool = True
    """Whether both played each fixed start equally often; otherwise the starts may be the whole difference."""

    @property
    def reading(self) -> str:
        """Return ``higher`` or ``lower`` if the interval of the difference is on one side of 0.

        One episode does not say how returns vary, so its intervals have no width and tell nothing apart. Nor do
        episodes from other starts.
        """
        if self.episodes < 2 or not self.same_starts:
            return "not told apart"
        low, high = self.difference_interval
        if low > 0:
            return "higher"
        if high < 0:
            return "lower"
        return "not told apart"


def read_played(path: Path) -> Played:
    """Read an evaluation.

    Args:
        path: the folder that `lmrl evaluate` wrote, its ``scores.json``, or a run folder with ``evaluation`` in it.

    Raises:
        UserError: there is no evaluation, or one of its files is missing or broken.
    """
    # The three ways to name an evaluation all lead to its folder.
    folder = path.parent if path.name == _SCORES else path
    if not (folder / _SCORES).is_file() and (folder / "evaluation" / _SCORES).is_file():
        folder = folder / "evaluation"
    scores = read_json(folder / _SCORES)
    if not scores:
        if has_run(folder):
            expected = folder / "evaluation" / _SCORES
            raise UserError(f"there is no {expected}; make it with: lmrl evaluate --policy {folder}")
        if str(path).startswith(ZOO_PREFIX):
            command = f"lmrl evaluate --policy {path} --out FOLDER"
            raise UserError(f"{path} is no evaluation; make one with: {command}, and compare FOLDER")
        raise UserError(f"there is no {folder / _SCORES}; make one with: lmrl evaluate --policy POLICY --out FOLDER")
    missing = ", ".join(key for key in SCORE_KEYS if key not in scores)
    if missing:
        raise UserError(f"{folder / _SCORES}: lacks {missing}")
    # Both files are written at once, so different numbers mean that one of them was replaced.
    table = read_table(folder / "episodes.csv")
    if len(table.returns) != scores["episodes"]:
        count = len(table.returns)
        raise UserError(f"{folder}: episodes.csv has {count} episodes, {_SCORES} is of {scores['episodes']}")
    return Played(folder, scores, table)


def compare(played: Sequence[Played]) -> list[Comparison]:
    """Compare each evaluation but the first with the first.

    If both played the same games (task, seed, starts and number of episodes), they are compared game by game, with the
    interval of `bootstrap_mean`. Otherwise the two are resampled independently.

    Raises:
        UserError: fewer than two evaluations, or they differ in the task or in the settings of the environment.
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
    settings = played.scores.get("provenance", {}).get("env") or {}
    return ", ".join(f"{name}={value}" for name, value in sorted(settings.items())) or "the task's own"


def _compare(ours: Played, base: Played) -> Comparison:
    our_returns = ours.table.returns
    base_returns = base.table.returns
    paired = ours.games == base.games
    if paired:
        # Each game is compared with itself, and games are resampled among those of the same start.
        differences = our_returns - base_returns
        wins = (np.sign(differences) + 1) / 2
        strata = (np.arange(len(wins)) % base.starts).tolist() if base.starts else None
        interval = bootstrap_mean(differences.tolist(), strata=strata)
        chance = float(wins.mean())
        chances = bootstrap_mean(wins.tolist(), strata=strata)
    else:
        ours_sample = Sample(our_returns.tolist(), ours.starts)
        base_sample = Sample(base_returns.tolist(), base.starts)
        # Different games: the two evaluations are independent samples, and each game meets every game of the other.
        interval = stratified_interval([ours_sample, base_sample], _gap)
        chance = improvement([ours_sample], [base_sample], [(0, 0)])
        chances = improvement_interval([ours_sample], [base_sample], [(0, 0)])
    difference = float(our_returns.mean() - base_returns.mean())
    our_mean = ours.mean_interval
    base_mean = base.mean_interval
    episodes = min(len(our_returns), len(base_returns))
    apart = episodes > 1 and (our_mean.high < base_mean.low or our_mean.low > base_mean.high)
    same_starts = paired or _mixes_starts_alike(ours, base)
    return Comparison(paired, difference, interval, chance, chances, apart, episodes, same_starts)


def _mixes_starts_alike(ours: Played, base: Played) -> bool:
    if ours.starts == base.starts == 0:  # each episode drew its start
        return True
    if ours.starts != base.starts or ours.is_selection != base.is_selection:
        return False
    # Starts are taken in turn, so equally many episodes have had each start equally often.
    counts = len(ours.table.returns), len(base.table.returns)
    return counts[0] == counts[1] or all(count % ours.starts == 0 for count in counts)


def _gap(samples: list[Resampled]) -> FloatArray:
    """Return the mean of the first sample minus that of the second, (R,)."""
    first, second = samples
    return first.mean() - second.mean()
