"""Measure how often the 95 % intervals of reports contain the true value, in 1,000 simulated evaluations each.

For intervals over episodes, the training runs are fixed: each has its own distribution of returns, and the true value
is that over infinitely many episodes. For intervals over seeds, the runs are drawn too. Returns are normal, or take six
values with many ties.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from benchmarks.row import Row
from lmrl.evaluation.intervals import (
    Interval,
    Resampled,
    Sample,
    bootstrap_mean,
    improvement_interval,
    pooled_interquartile_mean,
    rests_on_few,
    stratified_interval,
    student_mean,
    welch_difference,
)

SIMULATIONS = 1_000
RESAMPLES = 1_000
EPISODES = 256
BASE = (0.0, 0.2, -0.3)  # levels of three runs of BC
OURS = {"1 run against 3": (0.4,), "3 against 3": (0.1, 0.4, 0.7), "1 far better run against 3": (1.3,)}

Chance = np.random.Generator
Floats = NDArray[np.float64]


def shares(level: float) -> Floats:
    """Return the probabilities of the six returns in a run of that level."""
    weights: Floats = np.exp(0.6 * level * np.arange(6.0))
    share: Floats = weights / weights.sum()
    return share


def in_steps(level: float, size: int, chance: Chance) -> Floats:
    """Draw returns from -6 to -1, like those of Wordle."""
    return chance.choice(np.arange(-6.0, 0.0), size, p=shares(level))


def normal(level: float, size: int, chance: Chance) -> Floats:
    """Draw returns without ties."""
    return chance.normal(level, 1.0, size)


def wins(draw: Callable[..., Floats], ours: float, base: float) -> float:
    """Return the probability that an episode of one run returns more than one of another; ties count half."""
    if draw is normal:
        return NormalDist().cdf((ours - base) / 2**0.5)
    a = shares(ours)
    b = shares(base)
    return float((a[:, None] * b[None, :] * (np.sign(np.subtract.outer(range(6), range(6))) + 1) / 2).sum())


def improvement_held(draw: Callable[..., Floats], ours: Sequence[float], chance: Chance) -> bool:
    """Test one comparison with BC as the report makes it: by seed if both have the same seeds, else all with all."""
    same = len(ours) == len(BASE)
    pairs = [(a, b) for a in range(len(ours)) for b in range(len(BASE)) if a == b or not same]
    truth = float(np.mean([wins(draw, ours[a], BASE[b]) for a, b in pairs]))
    runs = [[Sample(draw(level, EPISODES, chance).tolist()) for level in side] for side in (ours, BASE)]
    return _holds(improvement_interval(runs[0], runs[1], pairs, resamples=RESAMPLES), truth)


def starts_held(chance: Chance) -> bool:
    """Test the interval of the mean return from 25 starts that lie far apart, eleven times each."""
    levels = np.linspace(-30.0, 0.0, 25)
    values = np.tile(levels, 11) + chance.normal(0.0, 2.0, 275)
    strata = [place % 25 for place in range(275)]
    return _holds(bootstrap_mean(values.tolist(), resamples=RESAMPLES, strata=strata), float(levels.mean()))


def seeds_held(chance: Chance) -> bool:
    """Test the interval of the mean of a task over three training seeds."""
    return _holds(student_mean(chance.normal(50.0, 10.0, 3).tolist()), 50.0)


def difference_held(gap: float, ours: int, base: int, paired: bool, chance: Chance) -> bool:
    """Test the interval of the difference of two methods over training seeds whose scores have a deviation of 1."""
    first = chance.normal(gap, 1.0, ours)
    second = chance.normal(0.0, 1.0, base)
    interval = student_mean((first - second).tolist()) if paired else welch_difference(first.tolist(), second.tolist())
    return _holds(interval, gap)


def rare_held(expected: float, marked: bool, chance: Chance) -> bool:
    """Test the interval of the mean of 645 games that return 0 or 1, but a few run to the clock and return -400.

    Args:
        expected: the average number of games that run to the clock.
        marked: an interval that `rests_on_few` reports counts as right.
        chance: the random generator of the games.
    """
    size = 645
    truth = (-400.0 * expected + 0.5 * (size - expected)) / size
    returns = np.where(chance.random(size) < expected / size, -400.0, chance.integers(0, 2, size))
    interval = bootstrap_mean(returns.tolist(), resamples=RESAMPLES)
    if marked and rests_on_few(interval, size, float(returns.mean()), Interval(-401.0, 1.0)):
        return True
    return _holds(interval, truth)


def tasks_held(chance: Chance) -> bool:
    """Test the interval of the interquartile mean over ten tasks of three seeds each; tasks vary no more than seeds."""
    samples = [Sample(chance.normal(50.0, 10.0, 3).tolist()) for _ in range(10)]
    return _holds(stratified_interval(samples, _pooled, resamples=RESAMPLES), 50.0)


def beats_held(chance: Chance) -> bool:
    """Test the interval of the probability that a run is above one of BC, over ten tasks of three seeds each."""
    gaps = np.linspace(-0.5, 1.5, 10)
    truth = float(np.mean([wins(normal, gap, 0.0) for gap in gaps]))
    ours, base = ([Sample(chance.normal(gap * side, 1.0, 3).tolist()) for gap in gaps] for side in (1, 0))
    pairs = [(task, task) for task in range(10)]
    return _holds(improvement_interval(ours, base, pairs, resamples=RESAMPLES), truth)


def _pooled(samples: list[Resampled]) -> Floats:
    return pooled_interquartile_mean(samples)


def _holds(interval: Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


def run(simulations: int = SIMULATIONS) -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    held: dict[str, Callable[[Chance], bool]] = {
        f"improvement over episodes, {name}, {kind}": partial(improvement_held, draw, ours)
        for kind, draw in (("in steps", in_steps), ("normal", normal))
        for name, ours in OURS.items()
    }
    held["mean over episodes, 25 fixed starts by 11"] = starts_held
    held["mean over seeds, 3"] = seeds_held
    held["interquartile mean over seeds, 10 tasks by 3"] = tasks_held
    held["improvement over seeds, 10 tasks by 3 against 3"] = beats_held
    for gap in (0.0, 1.0):
        apart = "equal" if gap == 0 else "a deviation apart"
        held[f"difference over seeds, 3 against 3, paired, {apart}"] = partial(difference_held, gap, 3, 3, True)
        held[f"difference over seeds, 3 against 3, {apart}"] = partial(difference_held, gap, 3, 3, False)
        held[f"difference over seeds, 2 against 3, {apart}"] = partial(difference_held, gap, 2, 3, False)
    for expected in (1, 2, 4, 8):
        name = f"mean over episodes, {expected} of 645 to the clock"
        held[name] = partial(rare_held, expected, False)
        held[f"{name}, or marked"] = partial(rare_held, expected, True)
    for name, simulate in held.items():
        share = sum(simulate(np.random.default_rng([number, len(name)])) for number in range(simulations)) / simulations
        yield Row(name, 100 * share, "%", None, "93 to 97 %", 1)
