"""Statistics over several training runs: interquartile means, probabilities of improvement, stratified bootstrap.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021. A sample is what
is resampled by itself: the episodes of one training run, or the training runs of one task. However often a statistic
looks at a sample, it is resampled once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.evaluation.intervals import Interval, grouped, percentiles

__all__ = [
    "Resampled",
    "Sample",
    "improvement",
    "improvement_interval",
    "interquartile_mean",
    "pooled_interquartile_mean",
    "stratified_interval",
]

FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """Values that are resampled by themselves."""

    values: Sequence[float]
    starts: int = 0
    """How many starts were taken in turn: value ``i`` is of start ``i % starts``, and stays with those of its start."""

    def strata(self) -> list[NDArray[np.intp]]:
        """The places of the values that are resampled among each other."""
        return grouped([place % self.starts if self.starts else 0 for place in range(len(self.values))])


@dataclass(frozen=True, slots=True)
class Resampled:
    """A sample and R resamples of it."""

    values: FloatArray
    """(n,)"""
    weights: FloatArray
    """(R, n): how often each value counts in each resample, once on average."""

    def mean(self) -> FloatArray:
        """(R,) the means of the resamples."""
        first = self.values[0]  # so that values that are all alike have just this mean
        means: FloatArray = first + self.weights @ (self.values - first) / self.values.size
        return means


Statistic: TypeAlias = Callable[[list[Resampled]], FloatArray]
"""From all samples to the (R,) values of the statistic."""


def interquartile_mean(values: FloatArray | Sequence[float]) -> FloatArray:
    """Mean of the middle half along the last axis: a quarter of the values, rounded down, is cut off at either end.

    Raises:
        UserError: no values.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim == 0 or data.shape[-1] == 0:
        raise UserError("an interquartile mean needs at least one value, got none")
    cut = data.shape[-1] // 4
    middle: FloatArray = np.sort(data, axis=-1)[..., cut : data.shape[-1] - cut].mean(axis=-1)
    return middle


def pooled_interquartile_mean(samples: Sequence[Resampled]) -> FloatArray:
    """(R,) interquartile means of all values together; a value that counts twice is there twice."""
    values = np.concatenate([sample.values for sample in samples])
    order, size, cut = np.argsort(values), values.size, values.size // 4
    upto = np.cumsum(np.hstack([sample.weights for sample in samples])[:, order], axis=1).clip(cut, size - cut)
    middle = Resampled(values[order], np.diff(upto, axis=1, prepend=float(cut)) * (size / (size - 2 * cut)))
    return middle.mean()


def stratified_interval(
    samples: Sequence[Sample], statistic: Statistic, seed: int = 0, level: float = 0.95, resamples: int = 2_000
) -> Interval:
    """Percentile bootstrap interval of a statistic; each sample is resampled within itself and its starts.

    Args:
        samples: independent of each other.
        statistic: see `Statistic`.
        seed: of the resampling.
        level: share of the resampled statistics inside the interval.
        resamples: how often all samples are drawn anew.

    Raises:
        UserError: no sample, one without values, or a level outside (0, 1).
    """
    generator = np.random.default_rng(seed)
    drawn = [_resampled(sample, generator, resamples) for sample in _checked(samples)]
    return percentiles(statistic(drawn), level)


def improvement(ours: Sequence[Sample], base: Sequence[Sample], pairs: Sequence[tuple[int, int]]) -> float:
    """Mean over the pairs of the probability that a value of ours beats one of the base; ties count half.

    For each pair it is the Mann-Whitney statistic over the number of comparisons.

    Args:
        ours: the samples of one player.
        base: those of the other.
        pairs: which of ours is compared with which of the base.

    Raises:
        UserError: no pair, or a sample without values.
    """
    _checked([*ours, *base] if pairs else [])
    return float(np.mean([_wins(ours[a].values, base[b].values).mean() for a, b in pairs]))


def improvement_interval(
    ours: Sequence[Sample],
    base: Sequence[Sample],
    pairs: Sequence[tuple[int, int]],
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 2_000,
) -> Interval:
    """Bootstrap interval of `improvement`: a sample that enters several pairs is resampled once, for all of them.

    Raises:
        UserError: no pair, a sample without values, or a level outside (0, 1).
    """
    _checked([*ours, *base] if pairs else [])

    def statistic(drawn: list[Resampled]) -> FloatArray:
        chances = [_beats(drawn[a], drawn[len(ours) + b]) for a, b in pairs]
        mean: FloatArray = np.mean(chances, axis=0)
        return mean

    return stratified_interval([*ours, *base], statistic, seed, level, resamples)


def _wins(a: Sequence[float] | FloatArray, b: Sequence[float] | FloatArray) -> FloatArray:
    """(n, m): 1 where a value of `a` is above one of `b`, 1/2 where they are equal."""
    difference = np.asarray(a, np.float64)[:, None] - np.asarray(b, np.float64)[None, :]
    wins: FloatArray = (np.sign(difference) + 1.0) / 2.0
    return wins


def _beats(a: Resampled, b: Resampled) -> FloatArray:
    """(R,): how often a value of `a` is above one of `b`, by resample."""
    wins = a.weights @ _wins(a.values, b.values)
    chances: FloatArray = np.einsum("rm,rm->r", wins, b.weights) / (a.values.size * b.values.size)
    return chances


def _resampled(sample: Sample, generator: np.random.Generator, resamples: int) -> Resampled:
    """One draw fewer than there are values in a stratum, each counting that much more (`lmrl.evaluation.intervals`)."""
    data = np.asarray(sample.values, dtype=np.float64)
    weights = np.ones((resamples, data.size))
    for places in sample.strata():
        size = len(places)
        if size > 1:
            drawn = generator.integers(size, size=(resamples, size - 1)) + size * np.arange(resamples)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=resamples * size).reshape(resamples, size)
            weights[:, places] = counts * (size / (size - 1))
    return Resampled(data, weights)


def _checked(samples: Sequence[Sample]) -> Sequence[Sample]:
    if not samples or min(len(sample.values) for sample in samples) == 0:
        raise UserError(f"every sample needs at least one value, got sizes {[len(s.values) for s in samples]}")
    return samples
