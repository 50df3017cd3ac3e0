"""Comparisons of methods: aggregates over all tasks, and differences on one task, over episodes and over seeds."""

from collections.abc import Mapping, Sequence
from itertools import product
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
from lmrl.evaluation.scores import Score, none_if_zero_width

_BASE = "bc"


class Aggregate(NamedTuple):
    """The interquartile mean of a method's scores, pooled over all tasks with an own scale and over seeds.

    Methods play with the decoding settings that were chosen for them, if any were.
    """

    name: str
    tasks: int
    iqm: float
    over_episodes: Interval
    over_seeds: Interval | None
    """The seeds of each task are resampled; None if some task has a single one."""
    beats_bc: float | None
    """Mean over tasks of the probability that the score of a seed is above that of a seed of BC; None for BC itself."""
    beats_bc_over_seeds: Interval | None
    """The seeds of both are resampled; None if one of them has a single seed in some task."""
    missing_fixes: tuple[str, ...] = ()
    """Names of the fixes that some of its runs lack, as in `lmrl.evaluation.scores.Score`."""


class Improvement(NamedTuple):
    """The probability that a method does better than a base."""

    name: str
    probability: float
    interval: Interval


def aggregates(scores: Mapping[str, Mapping[str, Score]], names: Sequence[str]) -> list[Aggregate]:
    """Return an aggregate for each method that has played all tasks with an own scale; empty below two such tasks.

    Args:
        scores: task to method to score.
        names: methods to look at.
    """
    # For each task, the scores of the methods that have one on the task's own scale.
    by_task = []
    for task, methods in scores.items():
        if registry.task(task).own_scale is None:
            continue
        scaled = {}
        for name, score in methods.items():
            if score.chosen.own_by_seed:
                scaled[name] = score.chosen
        by_task.append(scaled)
    if len(by_task) < 2:
        return []
    complete: dict[str, list[Score]] = {}
    for name in names:
        if all(name in scaled for scaled in by_task):
            complete[name] = [scaled[name] for scaled in by_task]
    rows = []
    # BC is compared with nothing, and without BC nothing is compared.
    for name, chosen in complete.items():
        bases = [] if name == _BASE else complete.get(_BASE, [])
        rows.append(_aggregate(name, chosen, bases))
    return rows


def _aggregate(name: str, scores: Sequence[Score], bases: Sequence[Score]) -> Aggregate:
    """Aggregate the scores of a method, one for each task, and compare them with those of BC on the same tasks."""
    by_task = [Sample(score.own_by_seed) for score in scores]
    bases_by_task = [Sample(base.own_by_seed) for base in bases]
    # Intervals over seeds need several seeds in every task.
    several = min(len(sample.values) for sample in by_task) > 1
    beats_bc = beats_bc_over_seeds = over_seeds = None
    if several:
        over_seeds = stratified_interval(by_task, pooled_interquartile_mean)
    if bases:
        same_task = [(task, task) for task in range(len(bases))]
        beats_bc = improvement(by_task, bases_by_task, same_task)
        if several and min(len(sample.values) for sample in bases_by_task) > 1:
            beats_bc_over_seeds = improvement_interval(by_task, bases_by_task, same_task)
    missing_fixes = set[str]()
    for score in scores:
        missing_fixes.update(score.missing_fixes)
    return Aggregate(
        name,
        len(scores),
        float(interquartile_mean(np.concatenate([sample.values for sample in by_task]))),
        _over_episodes(scores),
        over_seeds,
        beats_bc,
        beats_bc_over_seeds,
        tuple(sorted(missing_fixes)),
    )


def _over_episodes(scores: Sequence[Score]) -> Interval:
    """Return the interval over episodes of the interquartile mean; every run of every task is resampled by itself."""
    samples = []
    scales = []
    for score in scores:
        scale = registry.task(score.task).own_scale
        assert scale is not None
        samples += score.samples
        scales += [scale] * len(score.samples)

    def statistic(runs: list[Resampled]) -> FloatArray:
        means = []  # for each run (R,), on the own scale of its task
        for run, scale in zip(runs, scales, strict=True):
            means.append([normalize(float(value), scale) for value in run.mean()])
        return interquartile_mean(np.array(means).T)

    return stratified_interval(samples, statistic)


def improvements(scores: Mapping[str, Score], names: Sequence[str], base: str = _BASE) -> list[Improvement]:
    """Return the probability that an episode of a method returns more than one of the base with the same training seed.

    Methods play with the decoding settings that were chosen for them, if any were. If the two have different seeds, all
    pairs of seeds count. Intervals are over episodes: the same training runs in other games. They say nothing about
    other training runs.
    """
    rows = []
    for name in names:
        if name not in scores or base not in scores or name == base:
            continue
        ours = scores[name].chosen
        theirs = scores[base].chosen
        runs = range(len(ours.returns))
        # Runs of the same seed share data and initial weights, which makes their difference less noisy.
        if ours.seeds == theirs.seeds:
            pairs = list(zip(runs, runs, strict=True))
        else:
            pairs = list(product(runs, range(len(theirs.returns))))
        probability = improvement(ours.samples, theirs.samples, pairs)
        interval = improvement_interval(ours.samples, theirs.samples, pairs)
        rows.append(Improvement(name, probability, interval))
    return rows


class SeedDifference(NamedTuple):
    """The difference between two methods, with an interval over training seeds."""

    mean: float
    """Mean difference of the normalised scores."""
    interval: Interval | None
    """Student's interval of paired differences, else Welch's; None if the runs show no spread."""
    pairs: int
    """Number of training seeds by which the difference is paired; 0 if it is not paired."""


ENOUGH_SEEDS = 3
"""The number of paired training seeds from which on a difference is a statement about methods, not about runs."""


def seed_difference(ours: Score, base: Score) -> SeedDifference | None:
    """Compare two methods over training seeds; None unless both have at least two seeds.

    Runs with the same seed start from the same weights and see the same data. They are compared pair by pair if both
    methods have the same seeds, or at least three in common. Otherwise all runs count as independent.
    """
    our_scores = dict(zip(ours.seeds, ours.by_seed, strict=True))
    base_scores = dict(zip(base.seeds, base.by_seed, strict=True))
    if min(len(our_scores), len(base_scores)) < 2:
        return None
    common = sorted(our_scores.keys() & base_scores.keys())
    if our_scores.keys() == base_scores.keys() or len(common) >= ENOUGH_SEEDS:
        differences = [our_scores[seed] - base_scores[seed] for seed in common]
        mean = float(np.mean(differences))
        return SeedDifference(mean, none_if_zero_width(student_mean(differences)), len(common))
    # Welch's interval does not assume that both methods vary equally between seeds.
    mean = float(np.mean(ours.by_seed) - np.mean(base.by_seed))
    return SeedDifference(mean, none_if_zero_width(welch_difference(ours.by_seed, base.by_seed)), 0)
