import numpy as np
import pytest

from lmrl.errors import UserError
from lmrl.evaluation.intervals import (
    Interval,
    bootstrap_difference,
    bootstrap_mean,
    rests_on_few,
    student_mean,
    welch_difference,
    wilson,
)


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


def test_welchs_interval_of_two_samples() -> None:
    # Variances of 2 and 2: squared errors 1 and 1, (1 + 1)^2 / (1 + 1) = 2 degrees of freedom, t = 4.30265.
    reach = 4.30265 * 2**0.5
    assert welch_difference([0.0, 2.0], [1.0, 3.0]) == pytest.approx((-1 - reach, -1 + reach), abs=1e-4)
    # Where one side does not vary, the interval is that of the other's mean: 1 degree of freedom, t = 12.7062.
    assert welch_difference([0.0, 2.0], [5.0, 5.0, 5.0]) == pytest.approx((-4 - 12.7062, -4 + 12.7062), abs=1e-3)
    assert welch_difference([3.0, 3.0], [1.0, 1.0]) == (2.0, 2.0)
    with pytest.raises(UserError, match="two values or more on each side, got 1 and 3"):
        welch_difference([1.0], [1.0, 2.0, 3.0])


@pytest.mark.nightly
@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_a_few_training_runs_against_a_few_hold_the_truth(gap: float) -> None:
    """Runs are normal with deviation 1; percentiles of a bootstrap hold the difference in .90 of the cases at best."""
    generator = np.random.default_rng(0)
    draws = 2_000
    held = {"paired": 0, "3 against 3": 0, "2 against 3": 0}
    for _ in range(draws):
        ours = generator.normal(gap, 1.0, 3)
        base = generator.normal(0.0, 1.0, 3)
        intervals = {
            "paired": student_mean((ours - base).tolist()),
            "3 against 3": welch_difference(ours.tolist(), base.tolist()),
            "2 against 3": welch_difference(ours[:2].tolist(), base.tolist()),
        }
        for name, (low, high) in intervals.items():
            held[name] += low <= gap <= high
    assert {name: count / draws for name, count in held.items() if count < 0.93 * draws} == {}


@pytest.mark.nightly
@pytest.mark.parametrize("expected", [1, 2, 4, 8])
def test_an_interval_holds_the_truth_or_is_said_to_rest_on_few_games(expected: int) -> None:
    """Games return 0 or 1, and one in some hundreds returns -400, as a game that runs to the clock does."""
    generator = np.random.default_rng(expected)
    size = 645
    truth = (-400.0 * expected + 0.5 * (size - expected)) / size
    covered = told = 0
    draws = 500
    for _ in range(draws):
        rare = generator.random(size) < expected / size
        returns = np.where(rare, -400.0, generator.integers(0, 2, size))
        interval = bootstrap_mean(returns.tolist(), resamples=400)
        inside = interval.low <= truth <= interval.high
        covered += inside
        told += inside or rests_on_few(interval, size, float(returns.mean()), Interval(-401.0, 1.0))
    assert told >= 0.93 * draws
    assert expected > 2 or covered < 0.9 * draws  # else nothing had to be told


def test_an_interval_of_many_games_rests_on_them() -> None:
    steps = np.tile([-6.0, -3.0, -2.0, -2.0], 64)
    assert not rests_on_few(bootstrap_mean(steps.tolist()), 256, float(steps.mean()), Interval(-6.0, -1.0))
    assert rests_on_few(Interval(1.0, 1.0), 256, 1.0, Interval(0.0, 1.0))  # won all, and others have lost
    assert rests_on_few(Interval(1.0, 1.0), 256, 1.0, Interval(1.0, 1.0))


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
    a = generator.normal(3.0, 1.0, size=300)
    b = generator.normal(1.0, 2.0, size=300)
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
