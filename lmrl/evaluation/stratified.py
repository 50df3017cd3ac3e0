"""Statistics over several training runs: interquartile means, probabilities of improvement, stratified bootstrap.

Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice", NeurIPS 2021. A stratum is what
is resampled within itself: the episodes of one training seed, or the training seeds of one task.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.evaluation.intervals import Interval, percentiles

__all__ = ["improvement", "improvement_interval", "interquartile_mean", "stratified_interval"]

FloatArray: TypeAlias = NDArray[np.float64]

Strata: TypeAlias = Sequence[Sequence[float]]

Statistic: TypeAlias = Callable[[list[FloatArray]], FloatArray]
"""From one array (R, n) per stratum, each row a resample, to the (R,) values of the statistic."""


def interquartile_mean(values: FloatArray | Sequence[float]) -> FloatArray:
    """Mean of the middle half along the last axis: a quarter of the values, rounded down, is cut off at either end.

    Raises:
        UserError: no values.
    """
    data = np.sort(np.asarray(values, dtype=np.float64), axis=-1)
    if data.ndim == 0 or data.shape[-1] == 0:
        raise UserError("an interquartile mean needs at least one value, got none")
    cut = data.shape[-1] // 4
    middle: FloatArray = data[..., cut : data.shape[-1] - cut].mean(axis=-1)
    return middle


def stratified_interval(
    strata: Strata, statistic: Statistic, seed: int = 0, level: float = 0.95, resamples: int = 2_000
) -> Interval:
    """Percentile bootstrap interval of a statistic; each stratum is resampled within itself, to its own size.

    Args:
        strata: the values of each.
        statistic: see `Statistic`.
        seed: of the resampling.
        level: share of the resampled statistics inside the interval.
        resamples: how often all strata are drawn anew.

    Raises:
        UserError: no stratum, one without values, or a level outside (0, 1).
    """
    generator = np.random.default_rng(seed)
    return percentiles(statistic([_resampled(values, generator, resamples) for values in _checked(strata)]), level)


def improvement(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Mean over the pairs of the probability that a value of the first beats one of the second; ties count half.

    For each pair it is the Mann-Whitney statistic over the number of comparisons.
    """
    _checked([values for pair in pairs for values in pair])
    return float(np.mean([_beats(np.asarray([a], float), np.asarray([b], float))[0] for a, b in pairs]))


def improvement_interval(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 2_000,
) -> Interval:
    """Stratified bootstrap interval of `improvement`: both sides of every pair are resampled within themselves.

    Raises:
        UserError: no pair, a side without values, or a level outside (0, 1).
    """

    def statistic(sides: list[FloatArray]) -> FloatArray:
        chances: FloatArray = np.mean([_beats(a, b) for a, b in zip(sides[::2], sides[1::2], strict=True)], axis=0)
        return chances

    return stratified_interval([values for pair in pairs for values in pair], statistic, seed, level, resamples)


def _beats(a: FloatArray, b: FloatArray) -> FloatArray:
    """(R,) from (R, n) and (R, m): how often a value of a row of `a` is above one of that row of `b`."""
    support = np.unique(np.concatenate([a.ravel(), b.ravel()]))
    ours, theirs = _shares(a, support), _shares(b, support)
    below = np.cumsum(theirs, axis=1) - theirs
    chances: FloatArray = (ours * (below + theirs / 2)).sum(axis=1)
    return chances


def _shares(rows: FloatArray, support: FloatArray) -> FloatArray:
    """(R, U): how much of each row lies at each of the U values that occur at all."""
    places = np.searchsorted(support, rows) + np.arange(len(rows))[:, None] * len(support)
    counts = np.bincount(places.ravel(), minlength=len(rows) * len(support))
    shares: FloatArray = counts.reshape(len(rows), len(support)) / rows.shape[1]
    return shares


def _resampled(values: Sequence[float], generator: np.random.Generator, resamples: int) -> FloatArray:
    data = np.asarray(values, dtype=np.float64)
    return data[generator.integers(data.size, size=(resamples, data.size))]


def _checked(strata: Strata) -> Strata:
    if not strata or min(map(len, strata)) == 0:
        raise UserError(f"every stratum needs at least one value, got sizes {[len(values) for values in strata]}")
    return strata
