"""Statements over all tasks, and by task how probably one player does better than another."""

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
)
from lmrl.evaluation.scores import Score

__all__ = ["Aggregate", "Improvement", "aggregates", "improvements"]

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
            ours, theirs = scores[name].chosen, scores[base].chosen
            compared = ours.samples, theirs.samples, _pairs(ours, theirs)
            found.append(Improvement(name, improvement(*compared), improvement_interval(*compared)))
    return found


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
