"""Tests of the filters that decide which episodes filtered BC keeps."""

import pytest

from lmrl.datamodules import Filter
from lmrl.errors import UserError
from lmrl.types import Episode
from tests.helpers.doubles import episode


def with_returns(*returns: float) -> list[Episode]:
    return [episode("s", "a", rewards=[r], terminated=True) for r in returns]


def kept(rule: Filter, *returns: float) -> list[float]:
    return [e.total_reward for e in rule.keep(with_returns(*returns))]


def test_a_quarter_of_four_is_the_best_one() -> None:
    assert kept(Filter(top_fraction=0.25), 0, 0, 0, 1) == [1]


def test_ties_do_not_widen_the_fraction() -> None:
    """A rule by percentile would keep all three best."""
    assert kept(Filter(top_fraction=0.25), 1, 1, 1, 0) == [1]


def test_order_of_the_data_stays() -> None:
    assert kept(Filter(top_fraction=0.5), 5, 1, 9, 3) == [5, 9]


def test_the_undiscounted_return_of_the_whole_episode_counts() -> None:
    late = episode("s", "a", "t", "b", rewards=[0, 3], terminated=True)
    early = episode("s", "a", "t", "b", rewards=[2, 0], terminated=True)
    assert Filter(top_fraction=0.5).keep([early, late]) == [late]


def test_at_least_one_episode_is_kept() -> None:
    assert kept(Filter(top_fraction=0.01), 1, 2) == [2]


def test_return_and_success() -> None:
    solved = Episode("toy", ("s", "e"), ("a",), (-5.0,), True, False, info={"success": True})
    assert Filter(success=True).keep([*with_returns(1, 2), solved]) == [solved]
    assert kept(Filter(min_return=2), 1, 2, 3) == [2, 3]
    assert kept(Filter(min_return=2, top_fraction=0.5), 1, 2, 3, 4, 5) == [4, 5]


def test_keeping_nothing_is_an_error_that_says_so() -> None:
    with pytest.raises(UserError, match=r"keeps none of 2 episodes"):
        Filter(success=True).keep(with_returns(1, 2))


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_a_fraction_is_a_fraction(fraction: float) -> None:
    with pytest.raises(UserError, match="top_fraction"):
        Filter(top_fraction=fraction)
