"""States that come again: counted by hand, and in groups that begin alike."""

import pytest

from benchmarks.anchors import SIZE, group_starts, play, shared
from lmrl.envs.registry import make_policy
from lmrl.types import Episode


def said(*texts: str) -> Episode:
    """An observation first, then action and observation in turn."""
    actions = texts[1::2]
    return Episode("toy", texts[::2], actions, (0.0,) * len(actions), True, False)


def test_a_state_counts_where_another_episode_of_the_group_was_there() -> None:
    group = [said("a", "x", "b", "x", "b", "x", "."), said("a", "y", "b", "x", ".")]
    assert shared([group], whole=False) == 1.0
    assert shared([group], whole=True) == 2 / 5  # behind different actions the same observation is another state
    assert shared([[group[0]], [group[1]]], whole=False) == 0.0  # of another group


@pytest.mark.parametrize("task", ["maze_fo", "twenty_questions"])
def test_a_group_begins_alike_and_goes_its_own_ways(task: str) -> None:
    (one, other) = play(make_policy(task, "behaviour"), task, group_starts(task, groups=2))
    assert len(one) == len(other) == SIZE
    assert len({episode.observations[0] for episode in one}) == 1
    assert len({episode.actions for episode in one}) > 1
