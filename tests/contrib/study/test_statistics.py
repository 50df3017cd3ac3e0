from fractions import Fraction
from itertools import combinations
from math import comb, nan, sqrt

import numpy as np
import pytest

from lmrl.contrib.study.ratings import crossed_bootstrap, holm, permutation_test
from lmrl.errors import UserError
from tests.helpers.cases import cases


def by_the_book(a: list[list[float]], b: list[list[float]]) -> Fraction:
    """The test's definition, word by word, in exact arithmetic."""
    rows = [[None if x != x else Fraction(x) for x in (*left, *right)] for left, right in zip(a, b, strict=True)]
    means = [sum(given) / len(given) for row in rows if (given := [x for x in row if x is not None])]
    rows = [row for row in rows if any(x is not None for x in row)]
    value = {}
    for place in range(len(rows[0])):
        seen = [row[place] - mean for row, mean in zip(rows, means, strict=True) if row[place] is not None]
        if seen:
            value[place] = sum(seen) / len(seen)
    own = [place for place in value if place < len(a[0])]

    def distance(chosen: tuple[int, ...]) -> Fraction:
        rest = [value[place] for place in value if place not in chosen]
        return abs(sum(value[place] for place in chosen) / len(chosen) - sum(rest) / len(rest))

    deals = [distance(chosen) for chosen in combinations(value, len(own))]
    return Fraction(sum(one >= distance(tuple(own)) for one in deals), len(deals))


def test_two_against_two_by_hand() -> None:
    # The six ways to deal two names: |differences| of 5 4 | 1 2 are 3, 0, 1, 1, 0, 3; two are as far as the real 3.
    outcome = permutation_test(np.array([[5.0, 4.0]]), np.array([[1.0, 2.0]]))
    assert outcome == (2 / 6, 6, True)


def test_one_against_three_by_hand() -> None:
    # Differences of each sample from the mean of the others: 5 - 2 = 3; 1 - 10/3; 2 - 3; 3 - 8/3.
    outcome = permutation_test(np.array([[5.0]]), np.array([[1.0, 2.0, 3.0]]))
    assert outcome == (1 / 4, 4, True)


@cases("seed", range(20))
def test_the_definition_in_exact_arithmetic(seed: int) -> None:
    generator = np.random.default_rng(seed)
    raters = 1 + seed % 4
    left = 2 + seed % 3
    right = 2 + seed % 2
    scores = generator.integers(1, 6, size=(raters, left + right)).astype(float)
    scores[generator.random(scores.shape) < 0.25 * (seed % 2)] = nan
    scores[0, [0, -1]] = 3, 4  # both conditions have a rating
    a = scores[:, :left]
    b = scores[:, left:]
    assert permutation_test(a, b).p == pytest.approx(float(by_the_book(a.tolist(), b.tolist())))


def test_more_raters_who_agree_do_not_make_more_dialogues() -> None:
    a = np.array([[5.0, 4.0, 5.0]])
    b = np.array([[1.0, 2.0, 1.0]])
    alone = permutation_test(a, b)
    assert alone.p == 2 / comb(6, 3)
    assert permutation_test(a.repeat(30, axis=0), b.repeat(30, axis=0)) == alone


def test_a_strict_rater_changes_nothing() -> None:
    a = np.array([[5.0, 3.0, 4.0], [4.0, 3.0, 5.0]])
    b = np.array([[2.0, 3.0], [4.0, 1.0]])
    strict = np.array([[-2.0], [0.0]])
    assert permutation_test(a + strict, b + strict) == permutation_test(a, b)


def test_strictness_is_taken_out_where_raters_saw_different_dialogues() -> None:
    # A generous rater saw two of each, a strict one two others of each. Within each, all of a are above all of b.
    a = np.array([[5.0, 5.0, nan, nan], [nan, nan, 2.0, 2.0]])
    b = np.array([[4.0, 4.0, nan, nan], [nan, nan, 1.0, 1.0]])
    assert permutation_test(a, b).p == 2 / comb(8, 4)


def test_names_by_chance_are_found_different_no_more_often_than_p_says() -> None:
    scores = np.array([[1.0, 2.0, 2.0, 3.0, 5.0, 5.0], [2.0, 1.0, 3.0, 3.0, 4.0, 5.0]])
    ps = []
    for chosen in combinations(range(6), 3):
        rest = [place for place in range(6) if place not in chosen]
        ps.append(permutation_test(scores[:, chosen], scores[:, rest]).p)
    assert min(ps) == 0.1
    for level in set(ps):
        assert sum(p <= level for p in ps) / len(ps) <= level + 1e-12


def test_many_samples_are_dealt_at_random() -> None:
    # 9 of 12 against 3 of 12 are rated 5, the others 1: the number of fives in a deal is hypergeometric.
    a, b = (np.array([[5.0] * fives + [1.0] * (12 - fives)]) for fives in (9, 3))
    outcome = permutation_test(a, b, seed=1)
    exact = sum(comb(12, k) * comb(12, 12 - k) for k in range(13) if abs(2 * k - 12) >= 6) / comb(24, 12)
    assert (outcome.relabellings, outcome.exact) == (100_000, False)
    assert outcome.p == pytest.approx(exact, abs=4 * sqrt(exact / 100_000))
    assert outcome == permutation_test(a, b, seed=1) != permutation_test(a, b, seed=2)


def test_p_is_never_zero() -> None:
    outcome = permutation_test(np.full((2, 20), 5.0), np.full((2, 20), 1.0))
    assert outcome.p == 1 / 100_000


def test_a_test_needs_both_conditions() -> None:
    some = np.ones((2, 3))
    for a, b in ((some, np.full((2, 2), nan)), (np.full((2, 2), nan), some), (some, np.ones((3, 3)))):
        with pytest.raises(UserError, match="needs ratings of both conditions by the same raters"):
            permutation_test(a, b)


def test_holm_by_hand() -> None:
    # Sorted: 4 x .005, 3 x .01, 2 x .03, and .04, which may not be smaller than what came before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_raters_and_samples_are_both_drawn_anew() -> None:
    # Two raters, two samples, 1 2 | 3 5: each of both is drawn twice, once or never with chances 1/4, 1/2, 1/4.
    draws = crossed_bootstrap([np.array([[1.0, 2.0], [3.0, 5.0]])])[:, 0]
    expected = {1: 1, 2: 1, 3: 1, 5: 1, 1.5: 2, 4: 2, 2.75: 4}  # in sixteenths; 2 and 3.5 also come by columns
    expected[2] += 2
    expected[3.5] = 2
    found = {value: float(np.mean(draws == value)) for value in np.unique(draws)}
    assert found == pytest.approx({value: part / 16 for value, part in expected.items()}, abs=0.02)


def test_the_same_raters_are_drawn_for_all_conditions() -> None:
    a = np.array([[1.0], [3.0], [4.0]])
    means = crossed_bootstrap([a, a + 1])
    assert np.allclose(means[:, 1] - means[:, 0], 1)
    assert len(np.unique(means[:, 0])) > 5


def test_a_draw_without_a_rating_has_no_mean() -> None:
    draws = crossed_bootstrap([np.array([[4.0, nan]])])[:, 0]
    assert set(draws[~np.isnan(draws)]) == {4.0}
    assert np.mean(np.isnan(draws)) == pytest.approx(1 / 4, abs=0.02)
