"""95 % intervals: means by the bootstrap, rates by Wilson's score, training runs by Student's t.

A resample draws one value fewer than there are. Its mean then varies as that of the values does, where the variance of
as many draws is too small by 1 in n: nothing for 256 episodes, a third for three seeds, an eleventh for eleven episodes
from each of 25 starts (McCarthy and Snowden 1985; Rao and Wu 1988).

Statistics over several training runs: interquartile means, probabilities of improvement, stratified bootstrap.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021. A sample is what
is resampled by itself: the episodes of one training run, or the training runs of one task. However often a statistic
looks at a sample, it is resampled once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, lgamma, pi, sqrt
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError

__all__ = [
    "Interval",
    "Resampled",
    "Sample",
    "bootstrap_difference",
    "bootstrap_mean",
    "grouped",
    "improvement",
    "improvement_interval",
    "interquartile_mean",
    "percentiles",
    "pooled_interquartile_mean",
    "rests_on_few",
    "stratified_interval",
    "student_mean",
    "welch_difference",
    "wilson",
]

FloatArray: TypeAlias = NDArray[np.float64]

_DRAWS_PER_CHUNK = 4_000_000
"""Indices drawn at once: 32 MB, however many values and resamples there are."""


class Interval(NamedTuple):
    """Both ends of an interval, ``low <= high``."""

    low: float
    high: float


def bootstrap_mean(
    values: Sequence[float],
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 10_000,
    strata: Sequence[int] | None = None,
) -> Interval:
    """Percentile bootstrap interval of the mean of independent values (Efron 1979).

    Args:
        values: one number per episode.
        seed: of the resampling; the same values and seed give the same interval.
        level: share of resampled means inside the interval, between 0 and 1.
        resamples: how often the values are drawn again with replacement.
        strata: the number of each value's stratum, within which it is resampled: the start of its episode, where the
            starts are fixed. None: all are one.

    Raises:
        UserError: no values, or a level outside (0, 1).
    """
    data = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    parts = [data] if strata is None or data.size == 0 else [data[places] for places in grouped(strata)]
    means = [part.size / max(1, data.size) * _resampled_means(part, generator, resamples) for part in parts]
    return percentiles(np.sum(means, axis=0), level)


def grouped(strata: Sequence[int]) -> list[NDArray[np.intp]]:
    """The places of each stratum. Strata of a single value, whose spread is unknown, are pooled."""
    labels, sizes = np.unique(np.asarray(strata), return_inverse=True, return_counts=True)[1:]
    labels = np.where(sizes[labels] == 1, len(sizes), labels)
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def student_mean(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's interval of the mean of a few values that are about normal: those of training seeds.

    A bootstrap of three values would end at the lowest and the highest, and cover the mean in three of four cases.

    Raises:
        UserError: fewer than two values, or a level outside (0, 1).
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size < 2:
        raise UserError(f"Student's interval needs two values or more, got an array of shape {data.shape}")
    reach = _student(_checked(level), data.size - 1) * data.std(ddof=1) / sqrt(data.size)
    return Interval(float(data.mean() - reach), float(data.mean() + reach))


def welch_difference(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Interval:
    """Welch's interval of ``mean(a) - mean(b)``: Student's, for samples that need not vary alike (Welch 1947).

    Args:
        a: one number per training run of the first method.
        b: one number per training run of the second, whose runs are independent of the first's.
        level: share of such intervals that hold the difference.

    Raises:
        UserError: fewer than two values on one side, or a level outside (0, 1).
    """
    first = np.asarray(a, dtype=np.float64)
    second = np.asarray(b, dtype=np.float64)
    if min(first.size, second.size) < 2:
        raise UserError(f"Welch's interval needs two values or more on each side, got {first.size} and {second.size}")
    _checked(level)
    difference = float(first.mean() - second.mean())
    ours = first.var(ddof=1) / first.size
    base = second.var(ddof=1) / second.size
    if ours + base == 0:
        return Interval(difference, difference)
    freedom = (ours + base) ** 2 / (ours**2 / (first.size - 1) + base**2 / (second.size - 1))
    reach = _student(level, float(freedom)) * sqrt(ours + base)
    return Interval(difference - reach, difference + reach)


_FEW = 8
"""Rare games by which a spread is known; of four the interval of the mean covers .90, of eight .93."""


def rests_on_few(interval: Interval, games: int, mean: float, extremes: Interval) -> bool:
    """Whether a 95 % interval of a mean is too narrow to trust: it is as wide as fewer than eight rare games make it.

    A game that happens once in hundreds and returns far less than all others decides the mean, and a bootstrap that has
    drawn none or one of them does not know. `k` games at the extreme of all known returns give the mean a standard
    error of ``sqrt(k) * distance / games``. An interval that is narrower than that of eight does not rule out that
    such games happen.

    Args:
        interval: of the mean return, over games.
        games: number of games that the mean is of.
        mean: their mean return.
        extremes: lowest and highest return that such players are known to get.
    """
    distance = max(mean - extremes.low, extremes.high - mean)
    if distance <= 0:  # all games that are known returned the same
        return True
    error = (interval.high - interval.low) / (2 * NormalDist().inv_cdf(0.975))
    return (games * error / distance) ** 2 < _FEW


@lru_cache(maxsize=256)
def _student(level: float, freedom: float) -> float:
    """Half the width of the middle `level` of Student's distribution: its density, summed until there is enough."""
    # In t = sqrt(freedom) * tan(angle) the density is a power of the cosine, on a finite range.
    points = 4_001 if freedom < 100 else 200_001  # of many degrees of freedom the density is narrow
    angle = np.linspace(0.0, pi / 2, points)
    # By logarithms: gamma itself is too large for a float from 343 degrees of freedom on.
    scale = 2 * exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)
    density = scale * np.cos(angle) ** (freedom - 1)
    inside = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2 * angle[1])])
    return sqrt(freedom) * float(np.tan(np.interp(level, inside, angle)))


def bootstrap_difference(
    a: Sequence[float],
    b: Sequence[float],
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 10_000,
    scale: Callable[[float], float] | None = None,
) -> Interval:
    """Percentile bootstrap interval of ``mean(a) - mean(b)``, both resampled independently.

    Args:
        a: one number per episode of the first player.
        b: one number per episode of the second.
        seed: of the resampling.
        level: share of resampled differences inside the interval.
        resamples: how many pairs of resampled means.
        scale: applied to each resampled mean before subtracting, for differences of normalised scores,
            which are not linear in the return.

    Raises:
        UserError: no values, or a level outside (0, 1).
    """
    # One generator for both: with a generator each and equal seeds, two equal samples would be
    # resampled alike and their difference would look certain.
    generator = np.random.default_rng(seed)
    first, second = (_resampled_means(values, generator, resamples) for values in (a, b))
    if scale is not None:
        first, second = (np.array([scale(float(mean)) for mean in means]) for means in (first, second))
    return percentiles(first - second, level)


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a rate (Wilson 1927): within [0, 1], and of positive width at 0 and at n.

    Raises:
        UserError: unless ``0 <= successes <= n`` and ``n >= 1``, or for a level outside (0, 1).
    """
    if n < 1 or not 0 <= successes <= n:
        raise UserError(f"a rate needs 0 <= successes <= n and n >= 1, got successes={successes}, n={n}")
    z = NormalDist().inv_cdf(0.5 + _checked(level) / 2)
    rate = successes / n
    centre = rate + z * z / (2 * n)
    reach = z * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return Interval(max(0.0, (centre - reach) / scale), min(1.0, (centre + reach) / scale))


def _resampled_means(
    values: Sequence[float] | FloatArray, generator: np.random.Generator, resamples: int
) -> FloatArray:
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0:
        raise UserError(f"an interval needs at least one value in one dimension, got an array of shape {data.shape}")
    rows = max(1, _DRAWS_PER_CHUNK // data.size)
    sizes = [min(rows, resamples - start) for start in range(0, resamples, rows)]
    drawn = max(1, data.size - 1)
    return np.concatenate([data[generator.integers(data.size, size=(size, drawn))].mean(axis=1) for size in sizes])


def percentiles(means: FloatArray, level: float) -> Interval:
    """The interval that holds the middle `level` of resampled values.

    Raises:
        UserError: a level outside (0, 1).
    """
    tail = (1 - _checked(level)) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def _checked(level: float) -> float:
    if not 0 < level < 1:
        raise UserError(f"level must lie between 0 and 1, got {level}")
    return level


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
    order = np.argsort(values)
    size = values.size
    cut = values.size // 4
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
        resamples: how often all samples are drawn again.

    Raises:
        UserError: no sample, one without values, or a level outside (0, 1).
    """
    generator = np.random.default_rng(seed)
    drawn = [_resampled(sample, generator, resamples) for sample in _checked_strata(samples)]
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
    _checked_strata([*ours, *base] if pairs else [])
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
    _checked_strata([*ours, *base] if pairs else [])

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


def _checked_strata(samples: Sequence[Sample]) -> Sequence[Sample]:
    if not samples or min(len(sample.values) for sample in samples) == 0:
        raise UserError(f"every sample needs at least one value, got sizes {[len(s.values) for s in samples]}")
    return samples
