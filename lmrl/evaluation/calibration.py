"""How well learned values predict the returns of recorded episodes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.evaluation.intervals import Interval, Resampled, Sample, stratified_interval

__all__ = ["Bin", "Calibration", "calibration"]

FloatArray = NDArray[np.float64]


class Bin(NamedTuple):
    """The actions whose predicted values lie between two quantiles."""

    actions: int
    predicted: float
    """Mean of the predicted values."""
    returned: float
    """Mean of the returns that followed."""
    returned_ci: Interval
    """95 % bootstrap interval of that mean, over episodes."""


class Calibration(NamedTuple):
    """Predicted values of actions against the returns that followed; intervals are over episodes (bootstrap, 95 %)."""

    actions: int
    correlation: float | None
    """Pearson's; None where all predictions or all returns are equal."""
    correlation_ci: Interval | None
    """None also where no resample has a correlation, as of two episodes of one action each."""
    explained_variance: float | None
    """``1 - Var(return - prediction) / Var(return)``; None where all returns are equal."""
    bias: float
    """Mean of prediction less return: positive values promise too much."""
    bias_ci: Interval
    bins: tuple[Bin, ...]
    """The reliability table: quantile bins of the predictions, in ascending order."""


def calibration(
    predicted: Sequence[FloatArray], returned: Sequence[FloatArray], bins: int = 5, seed: int = 0
) -> Calibration:
    """Compare predictions with returns.

    Args:
        predicted: for each episode, (T,) the value of each action.
        returned: for each episode, (T,) the return that each value estimates.
        bins: number of quantile bins. Equal predictions share one, so there may be fewer.
        seed: seed of the resampling.

    Raises:
        UserError: no action.
    """
    values = np.concatenate([np.zeros(0), *predicted])
    returns = np.concatenate([np.zeros(0), *returned])
    if values.size == 0:
        raise UserError("a calibration needs at least one action")
    lengths = list(map(len, predicted))
    episode = np.repeat(np.arange(len(lengths)), lengths)  # (N,) the episode of each action

    def summed(numbers: FloatArray) -> FloatArray:
        """Return the sums over the actions of each episode: resamples of episodes need no more than these."""
        return np.bincount(episode, numbers, minlength=len(lengths)).astype(np.float64)

    def interval(statistic: Callable[[FloatArray], FloatArray]) -> Interval:
        """Return the interval of a statistic of (R, n) counts of the episodes; NaN if no resample defines it."""

        def defined(drawn: list[Resampled]) -> FloatArray:
            with np.errstate(invalid="ignore", divide="ignore"):
                found = statistic(drawn[0].weights)
            finite = found[np.isfinite(found)]  # a resample may lack all actions of a bin
            return finite if finite.size else np.array([np.nan])

        # The values are unused; only the resampling weights count.
        return stratified_interval([Sample([0.0] * len(lengths))], defined, seed)

    # A value at an edge belongs to the bin below it, and so do all that equal it.
    edges = np.unique(np.quantile(values, np.arange(1, bins) / bins))
    bin_of = np.searchsorted(edges, values)
    table = []
    for number in np.unique(bin_of):
        inside = bin_of == number
        actions = summed(inside)
        gained = summed(inside * returns)
        ratio = partial(_ratio_of_sums, gained, actions)
        table.append(
            Bin(int(inside.sum()), float(values[inside].mean()), float(returns[inside].mean()), interval(ratio))
        )

    error = values - returns
    bias_ci = interval(partial(_ratio_of_sums, summed(error), summed(np.ones_like(error))))
    correlation = correlation_ci = None
    # The standard deviation of equal numbers need not be 0, because their mean is rounded.
    returns_differ = np.ptp(returns) > 0
    if np.ptp(values) > 0 and returns_differ:
        # The numbers are standardised first: differences of large squares would be rounded.
        x = (values - values.mean()) / values.std()
        y = (returns - returns.mean()) / returns.std()
        correlation = float((x * y).mean())
        moments = np.stack([summed(part) for part in (np.ones_like(x), x, y, x * x, y * y, x * y)], axis=1)
        ends = interval(partial(_correlations, moments))
        correlation_ci = None if np.isnan(ends.low) else ends
    return Calibration(
        actions=values.size,
        correlation=correlation,
        correlation_ci=correlation_ci,
        explained_variance=1.0 - float(error.var() / returns.var()) if returns_differ else None,
        bias=float(error.mean()),
        bias_ci=bias_ci,
        bins=tuple(table),
    )


def _ratio_of_sums(numerator: FloatArray, denominator: FloatArray, counts: FloatArray) -> FloatArray:
    """Return a mean over actions in each resample, (R,), from sums over the actions of each episode, (n,)."""
    ratio: FloatArray = (counts @ numerator) / (counts @ denominator)
    return ratio


def _correlations(moments: FloatArray, counts: FloatArray) -> FloatArray:
    """Return Pearson's correlation in each resample, (R,), from (n, 6) sums of 1, x, y, x^2, y^2 and x y."""
    count, x, y, xx, yy, xy = (counts @ moments).T
    covariance = xy / count - x * y / count**2
    variance_x = xx / count - (x / count) ** 2
    variance_y = yy / count - (y / count) ** 2
    found: FloatArray = covariance / np.sqrt(variance_x * variance_y)
    # Where all numbers of a resample are equal, rounding leaves a variance.
    found[np.minimum(variance_x, variance_y) < 1e-12] = np.nan
    return found
