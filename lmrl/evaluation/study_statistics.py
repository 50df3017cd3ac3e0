"""How sure ratings are when the same people rate the same dialogues.

Neither two ratings of a person nor two of a dialogue are independent, so samples are relabelled as a whole, and raters
and samples are drawn anew as a whole.

Shapes: R raters, S samples of one condition; nan where somebody did not rate.
"""

from collections.abc import Sequence
from itertools import chain, combinations
from math import comb
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError

__all__ = ["Permutation", "crossed_bootstrap", "holm", "permutation_test"]

FloatArray: TypeAlias = NDArray[np.float64]

_EXACT = 200_000
"""Relabellings up to which all of them are looked at."""
_DRAWS = 99_999
_CHUNK = 2_000_000
"""Numbers shuffled at once."""
_TIE = 1e-9
"""Differences closer than this are equal: two orders of the same sum differ by rounding only."""


class Permutation(NamedTuple):
    """Outcome of a permutation test."""

    p: float
    relabellings: int
    """How many were looked at, the real one among them."""
    exact: bool
    """These were all there are."""


def permutation_test(a: FloatArray, b: FloatArray, seed: int = 0) -> Permutation:
    """Two-sided test of whether two conditions are rated alike.

    If they are, it is chance which samples bear which name. So the names are dealt to the samples anew, the same for
    all raters: within each rater the labels are permuted, and all ratings of a sample stay together. The statistic is
    the difference of the two means of sample values; a sample's value is the mean of its ratings, each less the mean
    of all that its rater gave to the two conditions. If everybody rated everything this is the difference of the mean
    ratings.

    ``p`` is the share of relabellings, the real one among them, whose statistic is at least as far from zero as the
    real one. All ``comb(S_a + S_b, S_a)`` are looked at if there are at most 200,000. Otherwise 99,999 are drawn, and
    ``p = (1 + those at least as far) / 100,000`` (Phipson and Smyth 2010).

    Args:
        a: ratings of the first condition, (R, S_a).
        b: ratings of the second condition by the same raters, (R, S_b).
        seed: of the drawing, if not all are looked at.

    Raises:
        UserError: a condition without any rating, or other raters in ``a`` than in ``b``.
    """
    if len(a) != len(b) or np.isnan(a).all() or np.isnan(b).all():
        raise UserError(f"a test needs ratings of both conditions by the same raters, got shapes {a.shape}, {b.shape}")
    values, size = _sample_values(a, b)
    total = comb(len(values), size)
    exact = total <= _EXACT
    sums = _all_sums(values, size) if exact else _drawn_sums(values, size, seed)
    others = values.sum() - sums
    differences = np.abs(sums / size - others / (len(values) - size))
    as_far = int(np.count_nonzero(differences >= differences[0] - _TIE))
    return Permutation(as_far / len(differences), len(differences), exact)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values: rejecting those at most alpha keeps the chance of any false one below alpha."""
    order = sorted(range(len(ps)), key=lambda place: ps[place])
    adjusted, largest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = largest
    return adjusted


def crossed_bootstrap(groups: Sequence[FloatArray], seed: int = 0, resamples: int = 10_000) -> FloatArray:
    """Mean ratings when raters and samples are both drawn anew with replacement (Owen 2007, the pigeonhole bootstrap).

    Quantiles of a column are an interval for a condition's mean, those of the difference of two columns one for the
    difference: the raters drawn are the same for all groups.

    Args:
        groups: ratings (R, S_g) of each condition by the same raters.
        seed: of the drawing.
        resamples: how often.

    Returns:
        (resamples, groups); nan where a draw held no rating of the group.
    """
    generator = np.random.default_rng(seed)
    raters = _drawn(len(groups[0]), generator, resamples)
    means = np.full((resamples, len(groups)), np.nan)
    for place, group in enumerate(groups):
        samples, given = _drawn(group.shape[1], generator, resamples), ~np.isnan(group)
        counts = ((raters @ given) * samples).sum(axis=1)
        sums = ((raters @ np.where(given, group, 0.0)) * samples).sum(axis=1)
        np.divide(sums, counts, out=means[:, place], where=counts > 0)
    return means


def _sample_values(a: FloatArray, b: FloatArray) -> tuple[FloatArray, int]:
    """The value of each sample that somebody rated, those of ``a`` first, and how many are of ``a``."""
    both = np.hstack([a, b])
    given = np.asarray(~np.isnan(both))
    both, rated = both[given.any(axis=1)], np.asarray(given.any(axis=0))
    centred = (both - np.nanmean(both, axis=1, keepdims=True))[:, rated]
    return np.nanmean(centred, axis=0), int(np.count_nonzero(rated[: a.shape[1]]))


def _all_sums(values: FloatArray, size: int) -> FloatArray:
    """The sum over each set of ``size`` samples; the first is that of the first ``size``."""
    places = chain.from_iterable(combinations(range(len(values)), size))
    chosen = np.fromiter(places, dtype=np.intp, count=size * comb(len(values), size))
    return np.asarray(values[chosen.reshape(-1, size)].sum(axis=1), dtype=np.float64)


def _drawn_sums(values: FloatArray, size: int, seed: int) -> FloatArray:
    """The sum over the first ``size`` samples, and over random sets of as many."""
    generator, rows = np.random.default_rng(seed), max(1, _CHUNK // len(values))
    sums = [values[:size].sum(keepdims=True)]
    for start in range(0, _DRAWS, rows):
        deals = np.tile(values, (min(rows, _DRAWS - start), 1))
        sums.append(generator.permuted(deals, axis=1)[:, :size].sum(axis=1))
    return np.concatenate(sums)


def _drawn(count: int, generator: np.random.Generator, resamples: int) -> FloatArray:
    """How often each of ``count`` comes up in as many draws with replacement, (resamples, count)."""
    return generator.multinomial(count, np.full(count, 1 / count), size=resamples).astype(np.float64)
