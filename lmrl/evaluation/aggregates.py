"""Statements over all tasks, and by task how one player does beside another, over episodes and over training seeds."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lmrl.envs import registry
from lmrl.envs.scores import normalize
from lmrl.evaluation.intervals import (
    FloatArray,
    Interval,
    Resampled,
    Sample,
    improvement,
    improvement_interval,
    interquartile_mean,
    pooled_interquartile_mean,
    stratified_interval,
    student_mean,
    welch_difference,
)
from lmrl.evaluation.scores import Score, with_spread

__all__ = [
    "ENOUGH_SEEDS",
    "Aggregate",
    "Improvement",
    "SeedDifference",
    "aggregates",
    "improvements",
    "seed_difference",
]

_BASE = "bc"


class Aggregate(NamedTuple):
    """Over all tasks that have a scale of their own: the interquartile mean of the scores on it of tasks and seeds.

    Every player with the settings that were chosen for it, where that was done.
    """

    name: str
    tasks: int
    iqm: float
    over_episodes: Interval
    over_seeds: Interval | None
    """The seeds of each task are resampled; None if some task has a single one."""
    beats_bc: float | None
    """Mean over the tasks of the probability that a seed's score is above one of BC; None for BC itself."""
    beats_bc_over_seeds: Interval | None
    before: tuple[str, ...] = ()
    """Names of the fixes that some of its runs are older than, as in `lmrl.evaluation.scores.Score`."""


class Improvement(NamedTuple):
    """How probably a player does better than a base."""

    name: str
    probability: float
    interval: Interval


def aggregates(scores: Mapping[str, Mapping[str, Score]], names: Sequence[str]) -> list[Aggregate]:
    """One of each player that has played all tasks which have a scale.

    Args:
        scores: task to player to score.
        names: players to look at.
    """
    tasks = [task for task in scores if registry.task(task).own_scale is not None]
    chosen = {
        task: {name: one.chosen for name, one in scores[task].items() if one.chosen.own_by_seed} for task in tasks
    }
    whole = [name for name in names if all(name in chosen[task] for task in tasks)]
    if len(tasks) < 2:
        return []
    bases = [chosen[task][_BASE] for task in tasks] if _BASE in whole else []
    return [_aggregate(name, [chosen[task][name] for task in tasks], bases if name != _BASE else []) for name in whole]


def improvements(scores: Mapping[str, Score], names: Sequence[str], base: str = _BASE) -> list[Improvement]:
    """The probability that an episode of a player returns more than one of the base with the same training seed.

    Each plays with the settings that were chosen for it, where that was done.
    Where the seeds of both differ, all pairs of seeds count. Intervals are over episodes: of these very runs, had they
    played others. What other runs would have been like they do not say, and cannot where a player has one run.
    """
    found = []
    for name in names:
        if name in scores and base in scores and name != base:
            ours = scores[name].chosen
            theirs = scores[base].chosen
            compared = ours.samples, theirs.samples, _pairs(ours, theirs)
            found.append(Improvement(name, improvement(*compared), improvement_interval(*compared)))
    return found


class SeedDifference(NamedTuple):
    """How far one method is above another, with an interval over training seeds."""

    mean: float
    """Mean difference of the normalised scores."""
    interval: Interval | None
    """Student's interval of paired differences, else Welch's; None if the runs show no spread."""
    pairs: int
    """Number of training seeds that both have, if the difference is paired by them; 0 if it is not."""


ENOUGH_SEEDS = 3
"""Paired training seeds from which on a difference is a statement about methods."""


def seed_difference(ours: Score, base: Score) -> SeedDifference | None:
    """Compare two methods over training seeds, each as it was scored; None unless both have two seeds or more.

    Runs with the same seed start from the same weights and see the same data, so they are compared pair by pair: where
    both methods have the same seeds, or three or more in common. Else all runs of both count as independent.
    """
    first = dict(zip(ours.seeds, ours.by_seed, strict=True))
    second = dict(zip(base.seeds, base.by_seed, strict=True))
    if min(len(first), len(second)) < 2:
        return None
    common = sorted(first.keys() & second.keys())
    if first.keys() == second.keys() or len(common) >= ENOUGH_SEEDS:
        differences = [first[seed] - second[seed] for seed in common]
        mean = float(np.mean(differences))
        return SeedDifference(mean, with_spread(student_mean(differences)), len(common))
    mean = float(np.mean(ours.by_seed) - np.mean(base.by_seed))
    return SeedDifference(mean, with_spread(welch_difference(ours.by_seed, base.by_seed)), 0)


def _pairs(ours: Score, base: Score) -> list[tuple[int, int]]:
    if ours.seeds == base.seeds:
        return [(run, run) for run in range(len(ours.returns))]
    return [(a, b) for a in range(len(ours.returns)) for b in range(len(base.returns))]


def _aggregate(name: str, scores: Sequence[Score], bases: Sequence[Score]) -> Aggregate:
    by_task = [Sample(score.own_by_seed) for score in scores]
    several = min(len(score.own_by_seed) for score in scores) > 1
    compared = by_task, [Sample(base.own_by_seed) for base in bases], [(task, task) for task in range(len(bases))]
    return Aggregate(
        name,
        len(scores),
        float(interquartile_mean(np.concatenate([score.own_by_seed for score in scores]))),
        _over_episodes(scores),
        stratified_interval(by_task, pooled_interquartile_mean) if several else None,
        improvement(*compared) if bases else None,
        improvement_interval(*compared) if bases and several else None,
        tuple(sorted({fix for score in scores for fix in score.before})),
    )


def _over_episodes(scores: Sequence[Score]) -> Interval:
    """Every run of every task is a sample, of its episodes."""
    owners = [registry.task(score.task).own_scale for score in scores for _ in score.returns]

    def statistic(parts: list[Resampled]) -> FloatArray:
        means = [
            [normalize(float(value), owner) for value in part.mean()]
            for part, owner in zip(parts, owners, strict=True)
            if owner is not None
        ]
        return interquartile_mean(np.array(means).T)

    return stratified_interval([sample for score in scores for sample in score.samples], statistic)
