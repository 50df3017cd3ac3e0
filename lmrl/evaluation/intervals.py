"""95 % intervals: means by the bootstrap, rates by Wilson's score, training runs by Student's t.

A resample draws one value fewer than there are. The variance of its mean is then that of the mean of the values. With n
draws from n values it would be too small by 1 in n: nothing for 256 episodes, a third for three seeds, an eleventh for
eleven episodes from each of 25 starts (McCarthy and Snowden 1985; Rao and Wu 1988).

Statistics over several training runs (interquartile means, probabilities of improvement, stratified bootstrap) follow
Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021. A sample is
resampled by itself: the episodes of one training run, or the training runs of one task. It is resampled once, however
often a statistic uses it.
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

FloatArray: TypeAlias = NDArray[np.float64]

_DRAWS_PER_CHUNK = 4_000_000
"""Number of indices that are drawn at once: 32 MB."""


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
        seed: seed of the resampling; the same values and seed give the same interval.
        level: share of resampled means inside the interval, between 0 and 1.
        resamples: number of resamples.
        strata: the number of each value's stratum, within which it is resampled: the start of its episode, where the
            starts are fixed. None: a single stratum.

    Raises:
        UserError: no values, or a level outside (0, 1).
    """
    data = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    if strata is None or data.size == 0:
        return percentiles(_resampled_means(data, generator, resamples), level)
    # The mean of all values is the mean over the strata, weighted by their sizes.
    weighted_means = []  # for each stratum, (R,)
    for indices in grouped(strata):
        stratum = data[indices]
        weighted_means.append(stratum.size / data.size * _resampled_means(stratum, generator, resamples))
    return percentiles(np.sum(weighted_means, axis=0), level)


def grouped(strata: Sequence[int]) -> list[NDArray[np.intp]]:
    """Return the indices of the values of each stratum. Strata of a single value, of unknown spread, are pooled."""
    labels, sizes = np.unique(np.asarray(strata), return_inverse=True, return_counts=True)[1:]
    labels = np.where(sizes[labels] == 1, len(sizes), labels)  # one more label than strata, for those of one value
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def student_mean(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's interval of the mean of a few values that are about normal, such as scores of training seeds.

    A bootstrap of three values would end at the lowest and the highest value and cover the mean in three of four cases.

    Raises:
        UserError: fewer than two values, or a level outside (0, 1).
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size < 2:
        raise UserError(f"Student's interval needs two values or more, got an array of shape {data.shape}")
    reach = _student(_checked(level), data.size - 1) * data.std(ddof=1) / sqrt(data.size)
    return Interval(float(data.mean() - reach), float(data.mean() + reach))


def welch_difference(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> Interval:
    """Welch's interval of ``mean(a) - mean(b)``: Student's, for samples of different variance (Welch 1947).

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
    # Squared standard errors of both means.
    error_a = first.var(ddof=1) / first.size
    error_b = second.var(ddof=1) / second.size
    if error_a + error_b == 0:
        return Interval(difference, difference)
    freedom = (error_a + error_b) ** 2 / (error_a**2 / (first.size - 1) + error_b**2 / (second.size - 1))
    reach = _student(level, float(freedom)) * sqrt(error_a + error_b)
    return Interval(difference - reach, difference + reach)


_MIN_RARE_GAMES = 8
"""Number of rare games that it takes to know a spread: with four the interval of a mean covers .90, with eight .93."""


def rests_on_few(interval: Interval, games: int, mean: float, extremes: Interval) -> bool:
    """Whether a 95 % interval of a mean is too narrow to trust: narrower than eight rare games would make it.

    A game that happens once in hundreds and returns far less than all others decides the mean. If none or one of the
    games was of that kind, the bootstrap cannot see it. `k` games at the extreme of all known returns give the mean a
    standard error of ``sqrt(k) * distance / games``. If the interval is narrower than with eight of them, such
    games may still happen.

    Args:
        interval: interval of the mean return, over games.
        games: number of games.
        mean: their mean return.
        extremes: lowest and highest known return of such policies.
    """
    distance = max(mean - extremes.low, extremes.high - mean)
    if distance <= 0:  # all known games returned the same
        return True
    # From the width of the interval back to the standard error, and from there to the number of games `k`.
    error = (interval.high - interval.low) / (2 * NormalDist().inv_cdf(0.975))
    return (games * error / distance) ** 2 < _MIN_RARE_GAMES


@lru_cache(maxsize=256)
def _student(level: float, freedom: float) -> float:
    """Return half the width of the middle `level` of Student's distribution, by integration of its density."""
    # With t = sqrt(freedom) * tan(angle) the density is a power of the cosine, on a finite range.
    points = 4_001 if freedom < 100 else 200_001  # the density is narrow for many degrees of freedom
    angle = np.linspace(0.0, pi / 2, points)
    # With logarithms, since gamma itself is too large for a float from 343 degrees of freedom on.
    scale = 2 * exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)
    density = scale * np.cos(angle) ** (freedom - 1)
    # By the trapezoidal rule, the probability that |t| lies below that of each angle.
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
        a: one number per episode of the first policy.
        b: one number per episode of the second.
        seed: seed of the resampling.
        level: share of resampled differences inside the interval.
        resamples: number of pairs of resampled means.
        scale: applied to each resampled mean before subtracting, for differences of normalised scores,
            which are not linear in the return.

    Raises:
        UserError: no values, or a level outside (0, 1).
    """
    # One generator for both: with a generator each and equal seeds, two equal samples would be
    # resampled alike and their difference would look certain.
    generator = np.random.default_rng(seed)
    first = _resampled_means(a, generator, resamples)
    second = _resampled_means(b, generator, resamples)
    if scale is not None:
        first = np.array([scale(float(mean)) for mean in first])
        second = np.array([scale(float(mean)) for mean in second])
    return percentiles(first - second, level)


def wilson(successes: float, n: float, level: float = 0.95) -> Interval:
    """Wilson's score interval of a rate (Wilson 1927): within [0, 1], and of positive width at 0 and at n.

    Args:
        successes: number of successes.
        n: number of trials. Neither needs to be whole, so that a mean of several rates has an interval, too.
        level: confidence level.

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
    """Return the means of resamples, (R,)."""
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0:
        raise UserError(f"an interval needs at least one value in one dimension, got an array of shape {data.shape}")
    chunk = max(1, _DRAWS_PER_CHUNK // data.size)
    drawn = max(1, data.size - 1)
    means = []
    for start in range(0, resamples, chunk):
        indices = generator.integers(data.size, size=(min(chunk, resamples - start), drawn))
        means.append(data[indices].mean(axis=1))
    return np.concatenate(means)


def percentiles(means: FloatArray, level: float) -> Interval:
    """Return the interval that holds the middle `level` of resampled values.

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
    """Values that are resampled by themselves, such as the returns of a run's episodes."""

    values: Sequence[float]
    starts: int = 0
    """Number of fixed starts: value ``i`` has start ``i % starts`` and is resampled among the values of its start."""


@dataclass(frozen=True, slots=True)
class Resampled:
    """A sample and R resamples of it."""

    values: FloatArray
    """(n,)"""
    weights: FloatArray
    """(R, n): how often each value counts in each resample, once on average."""

    def mean(self) -> FloatArray:
        """Return the means of the resamples, (R,)."""
        # Relative to the first value, so that the mean of equal values is exactly that value.
        first = self.values[0]
        means: FloatArray = first + self.weights @ (self.values - first) / self.values.size
        return means


Statistic: TypeAlias = Callable[[list[Resampled]], FloatArray]
"""From all samples to the values of the statistic, (R,)."""


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
    """Return interquartile means of all values together, (R,); a value that counts twice is there twice."""
    values = np.concatenate([sample.values for sample in samples])
    weights = np.hstack([sample.weights for sample in samples])
    order = np.argsort(values)
    size = values.size
    cut = size // 4
    # Lay the sorted values side by side, each as wide as its weight, and keep what lies between both cuts.
    right_ends = np.cumsum(weights[:, order], axis=1).clip(cut, size - cut)
    kept = np.diff(right_ends, axis=1, prepend=float(cut))
    middle = Resampled(values[order], kept * (size / (size - 2 * cut)))
    return middle.mean()


def stratified_interval(
    samples: Sequence[Sample], statistic: Statistic, seed: int = 0, level: float = 0.95, resamples: int = 2_000
) -> Interval:
    """Percentile bootstrap interval of a statistic; each sample is resampled within itself and its starts.

    Args:
        samples: samples that are independent of each other.
        statistic: from the resampled samples to its values, (R,).
        seed: seed of the resampling.
        level: share of the resampled statistics inside the interval.
        resamples: number of resamples.

    Raises:
        UserError: no sample, one without values, or a level outside (0, 1).
    """
    _check_samples(samples)
    shapes = tuple((len(sample.values), sample.starts) for sample in samples)
    drawn = []
    for sample, weights in zip(samples, _weights(shapes, seed, resamples), strict=True):
        drawn.append(Resampled(np.asarray(sample.values, dtype=np.float64), weights))
    return percentiles(statistic(drawn), level)


def improvement(ours: Sequence[Sample], base: Sequence[Sample], pairs: Sequence[tuple[int, int]]) -> float:
    """Mean over the pairs of the probability that a value of ours beats one of the base; ties count half.

    For each pair it is the Mann-Whitney statistic over the number of comparisons.

    Args:
        ours: the samples of one policy.
        base: those of the other.
        pairs: the index of a sample of ours and of one of the base, for each comparison.

    Raises:
        UserError: no pair, or a sample without values.
    """
    _check_samples([*ours, *base] if pairs else [])
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
    _check_samples([*ours, *base] if pairs else [])

    def statistic(drawn: list[Resampled]) -> FloatArray:
        # `drawn` holds our samples first, then those of the base.
        chances = [_beats(drawn[a], drawn[len(ours) + b]) for a, b in pairs]
        mean: FloatArray = np.mean(chances, axis=0)
        return mean

    return stratified_interval([*ours, *base], statistic, seed, level, resamples)


def _wins(a: Sequence[float] | FloatArray, b: Sequence[float] | FloatArray) -> FloatArray:
    """Return 1 where a value of `a` is above one of `b`, 1/2 where they are equal, and else 0, (n, m)."""
    difference = np.asarray(a, np.float64)[:, None] - np.asarray(b, np.float64)[None, :]
    wins: FloatArray = (np.sign(difference) + 1.0) / 2.0
    return wins


def _beats(a: Resampled, b: Resampled) -> FloatArray:
    """Return for each resample how often a value of `a` is above one of `b`, (R,)."""
    wins = a.weights @ _wins(a.values, b.values)
    chances: FloatArray = np.einsum("rm,rm->r", wins, b.weights) / (a.values.size * b.values.size)
    return chances


@lru_cache(maxsize=1)  # several statistics of the same samples follow each other
def _weights(shapes: tuple[tuple[int, int], ...], seed: int, resamples: int) -> list[FloatArray]:
    """Return how often each value counts in each resample: (R, n) for each sample.

    `shapes` holds the number of values and of fixed starts of each sample.

    A sample is resampled within its strata, with one draw fewer than there are values (see the top of this module).
    """
    generator = np.random.default_rng(seed)
    of_samples = []
    for n, starts in shapes:
        weights = np.ones((resamples, n))
        for indices in grouped((np.arange(n) % (starts or 1)).tolist()):
            size = len(indices)
            if size > 1:
                # Count how often each value was drawn in each resample: one `bincount` over all, a range per resample.
                drawn = generator.integers(size, size=(resamples, size - 1)) + size * np.arange(resamples)[:, None]
                counts = np.bincount(drawn.ravel(), minlength=resamples * size).reshape(resamples, size)
                weights[:, indices] = counts * (size / (size - 1))
        weights.flags.writeable = False
        of_samples.append(weights)
    return of_samples


def _check_samples(samples: Sequence[Sample]) -> None:
    sizes = [len(sample.values) for sample in samples]
    if not sizes or min(sizes) == 0:
        raise UserError(f"every sample needs at least one value, got sizes {sizes}")
