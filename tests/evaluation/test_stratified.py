from itertools import product
from statistics import NormalDist

import numpy as np
import pytest

from lmrl.errors import UserError
from lmrl.evaluation.intervals import (
    Resampled,
    Sample,
    improvement,
    improvement_interval,
    interquartile_mean,
    pooled_interquartile_mean,
    stratified_interval,
)


def test_interquartile_mean_by_hand() -> None:
    assert interquartile_mean([100.0, 1.0, 2.0, -50.0]) == 1.5
    assert interquartile_mean([9.0, 1.0, 2.0, 3.0, 4.0]) == 3.0  # of five one goes at either end
    assert interquartile_mean([9.0, 1.0, 2.0]) == 4.0  # of three none
    assert interquartile_mean([7.0]) == 7.0
    rows = np.array([[0.0, 1.0, 2.0, 90.0], [5.0, 5.0, 5.0, 5.0]])
    assert interquartile_mean(rows).tolist() == [1.5, 5.0]


def test_a_pooled_interquartile_mean_counts_values_as_often_as_they_were_drawn() -> None:
    generator = np.random.default_rng(0)
    counts = np.array([[1, 0, 2, 1], [2, 1, 1, 0], [1, 1, 1, 1]], float)
    first = Resampled(generator.normal(size=4), counts)
    second = Resampled(generator.normal(size=4), counts[::-1])
    values = np.concatenate([first.values, second.values])
    expected = [
        interquartile_mean(np.repeat(values, np.concatenate([a, b]).astype(int)))
        for a, b in zip(first.weights, second.weights, strict=True)
    ]
    assert pooled_interquartile_mean([first, second]) == pytest.approx(expected)


def mean(parts: list[Resampled]) -> np.ndarray:
    """Over samples of one size."""
    return np.mean([part.mean() for part in parts], axis=0)


def test_samples_are_resampled_within_themselves() -> None:
    """The first never lends its values to the second; every value counts once on average."""
    seen: list[Resampled] = []

    def spying(parts: list[Resampled]) -> np.ndarray:
        seen.extend(parts)
        return mean(parts)

    assert stratified_interval([Sample([1.0]), Sample([5.0, 5.0])], spying) == (3.0, 3.0)
    assert [part.weights.shape for part in seen] == [(2000, 1), (2000, 2)]
    assert all((part.weights.sum(axis=1) == part.values.size).all() for part in seen)
    assert seen[1].weights.mean(axis=0) == pytest.approx([1.0, 1.0], abs=0.1)


def test_the_bootstrap_of_small_samples_is_the_exact_distribution() -> None:
    """Two samples of three values, two of which are drawn: 81 equally likely resamples."""
    samples = [[0.0, 1.0, 4.0], [0.0, 10.0, 12.0]]
    exact = [np.mean(draw) for draw in product(samples[0], samples[0], samples[1], samples[1])]
    for level in (0.95, 0.8, 0.45):
        tail = (1 - level) / 2
        low, high = stratified_interval([Sample(values) for values in samples], mean, level=level, resamples=40_000)
        assert low == pytest.approx(np.quantile(exact, tail, method="inverted_cdf"))
        assert high == pytest.approx(np.quantile(exact, 1 - tail, method="inverted_cdf"))


def test_resampled_means_vary_as_the_mean_does() -> None:
    """The variance is that of the textbook, s^2 / n, for three values as for 25 starts of eleven."""
    generator = np.random.default_rng(0)
    found = []

    def spying(parts: list[Resampled]) -> np.ndarray:
        found.append(parts[0].mean().var())
        return parts[0].mean()

    three = generator.normal(size=3)
    cells = generator.normal(size=(11, 25)) + 9 * generator.normal(size=25)
    stratified_interval([Sample(three.tolist())], spying, resamples=40_000)
    stratified_interval([Sample(cells.ravel().tolist(), starts=25)], spying, resamples=40_000)
    expected = three.var(ddof=1) / 3, (cells.var(axis=0, ddof=1) / 11).sum() / 25**2
    assert found == pytest.approx(expected, rel=0.03)


def test_fixed_starts_are_no_chance() -> None:
    every = [-float(start) for start in range(25)]
    assert stratified_interval([Sample(every * 11, starts=25)], mean) == pytest.approx((-12.0, -12.0))
    low, high = stratified_interval([Sample(every, starts=25)], mean)  # once each: who knows how they vary
    assert low < -14 and high > -10
    low, high = stratified_interval([Sample([*every, 5.0], starts=25)], mean)  # the first one twice, by 5 apart
    assert low < -13 and high > -10


def test_improvement_by_hand() -> None:
    def of(*pairs: tuple[list[float], list[float]]) -> float:
        ours, base = zip(*((Sample(a), Sample(b)) for a, b in pairs), strict=True)
        return improvement(ours, base, [(i, i) for i in range(len(pairs))])

    assert of(([1.0, 3.0], [0.0, 3.0])) == (1 + 0 + 1 + 0.5) / 4
    assert of(([2.0], [1.0]), ([0.0], [1.0]), ([1.0], [1.0])) == 0.5
    assert of(([5.0, 6.0], [1.0, 2.0, 3.0])) == 1.0


def test_improvement_is_the_count_of_all_comparisons() -> None:
    generator = np.random.default_rng(0)
    a = Sample(generator.integers(0, 9, 40).tolist())
    b = Sample(generator.integers(2, 11, 30).tolist())
    counted = np.mean([(x > y) + 0.5 * (x == y) for x in a.values for y in b.values])
    assert improvement([a], [b], [(0, 0)]) == pytest.approx(counted)
    assert improvement([b], [a], [(0, 0)]) == pytest.approx(1 - counted)


def test_improvement_interval_of_coin_flips() -> None:
    """One value against two of which it beats one, and one of which is drawn."""
    lone = [Sample([1.0])]
    two = [Sample([0.0, 2.0])]
    assert improvement_interval(lone, two, [(0, 0)]) == (0.0, 1.0)
    assert improvement_interval([Sample([1.0, 1.0])], [Sample([0.0])], [(0, 0)]) == (1.0, 1.0)
    # A base that is the same run twice is resampled twice; ours is resampled once for both pairs.
    assert improvement_interval(two, [*lone, *lone], [(0, 0), (0, 1)], level=0.4) == (0.0, 1.0)
    assert improvement_interval(lone, [*two, *two], [(0, 0), (0, 1)], level=0.4) == (0.5, 0.5)


def test_improvement_interval_agrees_with_the_normal_one() -> None:
    generator = np.random.default_rng(1)
    a = generator.normal(0.3, 1, 300)
    b = generator.normal(0.0, 1, 300)
    compared = [Sample(a.tolist())], [Sample(b.tolist())], [(0, 0)]
    low, high = improvement_interval(*compared)
    value = improvement(*compared)
    wins = (a[:, None] > b[None, :]).astype(float)
    reach = 1.96 * np.sqrt(wins.mean(1).var() / 300 + wins.mean(0).var() / 300)
    assert (low, high) == pytest.approx((value - reach, value + reach), abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("ours", [(0.5,), (0.2, 0.5, 0.8)])
def test_improvement_intervals_hold_the_truth_as_often_as_they_say(ours: tuple[float, ...]) -> None:
    """One run and three against three of the base, each with a level of its own; 200 evaluations of each."""
    base = (0.0, 0.2, -0.2)
    generator = np.random.default_rng(0)
    pairs = [(i, i) if len(ours) == 3 else (0, i) for i in range(3)]
    truth = np.mean([NormalDist().cdf((ours[a] - base[b]) / 2**0.5) for a, b in pairs])
    held = 0
    for _ in range(200):
        runs = [[Sample(generator.normal(level, 1.0, 40)) for level in side] for side in (ours, base)]
        low, high = improvement_interval(runs[0], runs[1], pairs, resamples=300)
        held += low <= truth <= high
    assert 0.9 <= held / 200 <= 0.985


def test_nothing_to_resample() -> None:
    with pytest.raises(UserError, match="at least one value"):
        interquartile_mean([])
    for samples in ([], [Sample([1.0]), Sample([])]):
        with pytest.raises(UserError, match="every sample"):
            stratified_interval(samples, mean)
    with pytest.raises(UserError, match="every sample"):
        improvement([Sample([1.0])], [Sample([1.0])], [])
