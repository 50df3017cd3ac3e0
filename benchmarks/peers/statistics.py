"""Interquartile means, probabilities of improvement and their intervals beside rliable's.

The point estimates have one definition (Agarwal et al. 2021), and must be equal. Intervals are not: both resample the
runs of each task by themselves and take percentiles, but rliable draws as many runs as there are, whose spread is too
small by 1 in n; ours draws one fewer. So both are counted on made-up runs whose truth is known: how often a 95 %
interval holds it. And both are timed, over as many resamples.
"""

from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from rliable import library, metrics

from benchmarks.peers.beside import OURS, REPEATS, alternating, beside
from benchmarks.row import Row
from lmrl.evaluation.intervals import (
    Interval,
    Sample,
    improvement,
    interquartile_mean,
    pooled_interquartile_mean,
    stratified_interval,
)

__all__ = ["gaps", "run"]

PACKAGES = ("rliable", "arch", "numpy")
RLIABLE = "rliable"
RUNS = 3
TASKS = 10
SIMULATIONS = 300
RESAMPLES = 1_000
SHAPES = ((3, 10), (5, 7), (2, 1), (10, 26))

Scores = NDArray[np.float64]


def samples(scores: Scores) -> list[Sample]:
    """The runs of each task."""
    return [Sample(task.tolist()) for task in scores.T]


def our_iqm(scores: Scores) -> Interval:
    return stratified_interval(samples(scores), pooled_interquartile_mean, resamples=RESAMPLES)


def their_iqm(scores: Scores, seed: int = 0) -> Interval:
    _, ends = library.get_interval_estimates(
        {"one": scores},
        lambda drawn: np.array([metrics.aggregate_iqm(drawn)]),
        reps=RESAMPLES,
        random_state=np.random.RandomState(seed),
    )
    low, high = ends["one"][:, 0]
    return Interval(float(low), float(high))


def pairs(tasks: int) -> list[tuple[int, int]]:
    return [(task, task) for task in range(tasks)]


def gaps(shape: tuple[int, int], ties: bool = False) -> dict[str, float]:
    """How far the point estimates of both lie apart, on scores by chance."""
    chance = np.random.default_rng(shape)
    one, other = (chance.normal(size=shape) for _ in range(2))
    if ties:
        one = one.round()
        other = other.round()
    iqm = float(interquartile_mean(one.ravel())) - metrics.aggregate_iqm(one)
    better = improvement(samples(one), samples(other), pairs(shape[1]))
    return {"IQM": abs(iqm), "improvement": abs(better - float(metrics.probability_of_improvement(one, other)))}


def coverage(interval: Callable[[Scores], Interval], simulations: int) -> float:
    """Percent of intervals of the IQM that hold it: runs that are normal about 50, whose IQM is 50 too."""
    held = 0
    for number in range(simulations):
        low, high = interval(np.random.default_rng([number, 7]).normal(50.0, 10.0, (RUNS, TASKS)))
        held += low <= 50.0 <= high
    return 100 * held / simulations


def per_second(interval: Callable[[Scores], Interval], scores: Scores, times: int = 3) -> Callable[[], float]:
    """Resamples per second."""

    def way() -> float:
        seconds = []
        for _ in range(times):
            began = perf_counter()
            interval(scores)
            seconds.append(perf_counter() - began)
        return RESAMPLES / median(seconds)

    return way


def run(repeats: int = REPEATS, simulations: int = SIMULATIONS) -> Iterator[Row]:
    """Rows for `python -m benchmarks.peers statistics`."""
    found = [gaps(shape, ties) for shape in SHAPES for ties in (False, True)]
    for name in ("IQM", "improvement"):
        gap = max(one[name] for one in found)
        yield Row(f"{name}, difference to rliable's, at most", gap, "", "lower", "<= 1e-9", shown=f"{gap:.1g}")
    what = f"95 % intervals of the IQM of {TASKS} tasks by {RUNS} runs"
    for side, interval in ((OURS, our_iqm), (RLIABLE, their_iqm)):
        share = coverage(interval, simulations)
        yield Row(f"{what} that hold it, {side}", share, "%", None, "95 %" if side == OURS else "", 1)
    scores = np.random.default_rng(0).normal(50.0, 10.0, (RUNS, TASKS))
    ways = {OURS: per_second(our_iqm, scores), RLIABLE: per_second(their_iqm, scores)}
    yield from beside(what, "resamples/s", alternating(ways, repeats), {RLIABLE: ">= 1x"})
