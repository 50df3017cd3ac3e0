import numpy as np
import pytest

from lmrl.errors import UserError
from lmrl.evaluation.intervals import Interval, bootstrap_difference, bootstrap_mean, student_mean, wilson


def test_wilson_exact_numbers() -> None:
    # z = 1.959964; by hand for 8 of 10: centre 0.992073 / 1.384146, reach 0.312...
    assert wilson(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert wilson(1, 2, level=0.6826894921370859) == pytest.approx((0.5 - 12**-0.5, 0.5 + 12**-0.5), abs=1e-9)  # z = 1


def test_wilson_at_the_ends_is_not_certain() -> None:
    z2 = 1.959963984540054**2
    assert wilson(0, 20) == pytest.approx((0.0, z2 / (20 + z2)), abs=1e-12)
    assert wilson(20, 20) == pytest.approx((20 / (20 + z2), 1.0), abs=1e-12)


def test_bootstrap_of_three_values_counts_coin_flips() -> None:
    # Means of two draws from {0, 1, 2}: 0, 1/2, 1, 3/2, 2 with probabilities 1, 2, 3, 2, 1 in 9.
    assert bootstrap_mean([0.0, 1.0, 2.0], level=0.95) == Interval(0.0, 2.0)
    assert bootstrap_mean([0.0, 1.0, 2.0], level=0.70) == Interval(0.5, 1.5)
    assert bootstrap_mean([0.0, 1.0, 2.0], level=0.25) == Interval(1.0, 1.0)


def test_a_bootstrap_within_strata() -> None:
    """Four ways from each of two starts: nothing varies but within them, and a start of one is no start of its own."""
    strata = [0, 1] * 4
    assert bootstrap_mean([3.0, 9.0] * 4, strata=strata) == Interval(6.0, 6.0)
    values = np.random.default_rng(0).normal(size=8) + np.tile([0.0, 100.0], 4)
    low, high = bootstrap_mean(values.tolist(), strata=strata)
    assert values.mean() - 1.5 < low < values.mean() < high < values.mean() + 1.5
    assert bootstrap_mean(values.tolist(), strata=range(8)) == bootstrap_mean(values.tolist())


def test_students_interval_of_a_few_seeds() -> None:
    # Quantiles of the tables: t(.975) = 12.706, 4.303, 2.262 for 1, 2, 9 degrees of freedom; t(.95) = 2.920 for 2.
    assert student_mean([0.0, 2.0]) == pytest.approx((1 - 12.7062, 1 + 12.7062), abs=1e-3)
    assert student_mean([0.0, 1.0, 2.0]) == pytest.approx((1 - 4.30265 / 3**0.5, 1 + 4.30265 / 3**0.5), abs=1e-4)
    assert student_mean([0.0, 1.0, 2.0], level=0.9) == pytest.approx(
        (1 - 2.91999 / 3**0.5, 1 + 2.91999 / 3**0.5), abs=1e-4
    )
    ten = np.arange(10.0)
    assert student_mean(ten.tolist()).high == pytest.approx(4.5 + 2.26216 * ten.std(ddof=1) / 10**0.5, abs=1e-4)
    assert student_mean([7.0, 7.0]) == Interval(7.0, 7.0)
    many = np.tile([-1.0, 1.0], 5_000)  # of so many, those of a normal mean
    assert student_mean(many.tolist()) == pytest.approx((-0.0196020, 0.0196020), abs=1e-6)
    with pytest.raises(UserError, match="two values or more"):
        student_mean([1.0])


def test_bootstrap_agrees_with_the_normal_interval() -> None:
    values = np.random.default_rng(3).normal(5.0, 2.0, size=400)
    reach = 1.96 * values.std() / 20
    low, high = bootstrap_mean(values.tolist())
    assert low == pytest.approx(values.mean() - reach, abs=0.02)
    assert high == pytest.approx(values.mean() + reach, abs=0.02)


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    values = list(range(50))
    whole = bootstrap_mean(values, resamples=1000)
    monkeypatch.setattr("lmrl.evaluation.intervals._DRAWS_PER_CHUNK", 777)
    assert bootstrap_mean(values, resamples=1000) == whole


def test_same_seed_same_interval_and_no_global_randomness() -> None:
    values = np.random.default_rng(0).normal(size=30).tolist()
    before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]
    assert bootstrap_mean(values, seed=1) == bootstrap_mean(values, seed=1) != bootstrap_mean(values, seed=2)
    assert (np.random.get_state()[1] == before).all()  # type: ignore[index]


def test_difference_has_the_variance_of_both() -> None:
    generator = np.random.default_rng(5)
    a, b = generator.normal(3.0, 1.0, size=300), generator.normal(1.0, 2.0, size=300)
    reach = 1.96 * np.sqrt(a.var() / 300 + b.var() / 300)
    low, high = bootstrap_difference(a.tolist(), b.tolist())
    assert low == pytest.approx(a.mean() - b.mean() - reach, abs=0.02)
    assert high == pytest.approx(a.mean() - b.mean() + reach, abs=0.02)


def test_difference_of_a_sample_with_itself_is_uncertain() -> None:
    values = np.random.default_rng(0).normal(size=100).tolist()
    low, high = bootstrap_difference(values, values)
    assert low < -0.15 and high > 0.15


def test_difference_on_another_scale() -> None:
    assert bootstrap_difference([4.0, 4.0], [1.0], scale=lambda mean: 10 * mean + 7) == Interval(30.0, 30.0)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_is_a_share(level: float) -> None:
    with pytest.raises(UserError, match="level"):
        bootstrap_mean([1.0], level=level)
    with pytest.raises(UserError, match="level"):
        wilson(1, 2, level=level)


def test_nothing_to_average() -> None:
    with pytest.raises(UserError, match="at least one value"):
        bootstrap_mean([])
    with pytest.raises(UserError, match="successes=3, n=2"):
        wilson(3, 2)
