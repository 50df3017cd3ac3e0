from itertools import product

import numpy as np
import pytest

from lmrl.errors import UserError
from lmrl.evaluation.stratified import improvement, improvement_interval, interquartile_mean, stratified_interval


def test_interquartile_mean_by_hand() -> None:
    assert interquartile_mean([100.0, 1.0, 2.0, -50.0]) == 1.5
    assert interquartile_mean([9.0, 1.0, 2.0, 3.0, 4.0]) == 3.0  # of five one goes at either end
    assert interquartile_mean([9.0, 1.0, 2.0]) == 4.0  # of three none
    assert interquartile_mean([7.0]) == 7.0
    rows = np.array([[0.0, 1.0, 2.0, 90.0], [5.0, 5.0, 5.0, 5.0]])
    assert interquartile_mean(rows).tolist() == [1.5, 5.0]


def test_strata_are_resampled_within_themselves() -> None:
    """The first stratum never lends its values to the second, and each keeps its size."""
    seen = []

    def mean(parts: list[np.ndarray]) -> np.ndarray:
        seen.extend(parts)
        return np.mean([part.mean(axis=1) for part in parts], axis=0)

    assert stratified_interval([[1.0], [5.0, 5.0]], mean) == (3.0, 3.0)
    assert [part.shape for part in seen] == [(2000, 1), (2000, 2)]


def test_the_bootstrap_of_small_strata_is_the_exact_distribution() -> None:
    """Two strata of two values: sixteen equally likely resamples, all of which can be written down."""
    strata = [[0.0, 1.0], [0.0, 10.0]]
    exact = [(a + b + c + d) / 4 for a, b in product(strata[0], repeat=2) for c, d in product(strata[1], repeat=2)]

    def mean(parts: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(parts, axis=1).mean(axis=1)

    for level in (0.95, 0.8, 0.45):
        tail = (1 - level) / 2
        low, high = stratified_interval(strata, mean, level=level, resamples=40_000)
        assert low == np.quantile(exact, tail, method="inverted_cdf")
        assert high == np.quantile(exact, 1 - tail, method="inverted_cdf")


def test_improvement_by_hand() -> None:
    assert improvement([([1.0, 3.0], [0.0, 3.0])]) == (1 + 0 + 1 + 0.5) / 4
    assert improvement([([2.0], [1.0]), ([0.0], [1.0]), ([1.0], [1.0])]) == 0.5
    assert improvement([([5.0, 6.0], [1.0, 2.0, 3.0])]) == 1.0


def test_improvement_is_the_count_of_all_comparisons() -> None:
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 9, 40).tolist(), generator.integers(2, 11, 30).tolist()
    counted = np.mean([(x > y) + 0.5 * (x == y) for x in a for y in b])
    assert improvement([(a, b)]) == pytest.approx(counted)
    assert improvement([(b, a)]) == pytest.approx(1 - counted)


def test_improvement_interval_of_coin_flips() -> None:
    """One value against two of which it beats one: the resampled share of wins is 0, 1/2 or 1 with 1/4, 1/2, 1/4."""
    assert improvement_interval([([1.0], [0.0, 2.0])]) == (0.0, 1.0)
    assert improvement_interval([([1.0], [0.0, 2.0])], level=0.4) == (0.5, 0.5)
    assert improvement_interval([([1.0, 1.0], [0.0])]) == (1.0, 1.0)


def test_improvement_interval_agrees_with_the_normal_one() -> None:
    generator = np.random.default_rng(1)
    a, b = generator.normal(0.3, 1, 300), generator.normal(0.0, 1, 300)
    low, high = improvement_interval([(a.tolist(), b.tolist())])
    value = improvement([(a.tolist(), b.tolist())])
    wins = (a[:, None] > b[None, :]).astype(float)
    reach = 1.96 * np.sqrt(wins.mean(1).var() / 300 + wins.mean(0).var() / 300)
    assert (low, high) == pytest.approx((value - reach, value + reach), abs=0.01)


def test_nothing_to_resample() -> None:
    with pytest.raises(UserError, match="at least one value"):
        interquartile_mean([])
    for strata in ([], [[1.0], []]):
        with pytest.raises(UserError, match="every stratum"):
            stratified_interval(strata, lambda parts: parts[0][:, 0])
    with pytest.raises(UserError, match="every stratum"):
        improvement([])
