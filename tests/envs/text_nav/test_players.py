from statistics import mean

import pytest

import lmrl
from lmrl.envs.registry import make_policy, recording
from lmrl.envs.text_nav.house import ROOMS, begin, obey
from lmrl.envs.text_nav.players import PARTS, TextNavPlayer, best_command
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Start


def recorded(count: int) -> list[Episode]:
    recipe = recording("text_nav_fo")
    starts = (recipe.start(0, index) for index in range(count))
    return in_order(rollout(recipe.policy, lambda: lmrl.make("text_nav_fo"), starts, task="text_nav_fo"))


@pytest.mark.nightly
def test_the_dataset_is_like_the_published_one() -> None:
    episodes = recorded(2_500)
    assert mean(map(len, episodes)) == pytest.approx(12.2, rel=0.1)
    assert mean(episode.success for episode in episodes) == pytest.approx(0.26, rel=0.1)
    assert mean(episode.total_reward for episode in episodes) == pytest.approx(0.258, rel=0.1)
    assert {episode.info["start"]["room"] for episode in episodes} == set(ROOMS)


@pytest.mark.nightly
def test_far_rooms_are_rarely_won_from() -> None:
    episodes = recorded(1_500)
    by_room = {room: [e.success for e in episodes if e.info["start"]["room"] == room] for room in ROOMS}
    assert mean(by_room["garden"]) < 0.2 < mean(by_room["living room"])


def test_the_parts_are_all_rooms() -> None:
    assert sorted(room for rooms, _ in PARTS for room in rooms) == sorted(ROOMS)
    assert sum(share for _, share in PARTS) == 1


@pytest.mark.parametrize("task", ["text_nav_fo", "text_nav_po"])
def test_the_optimal_player_always_wins(task: str) -> None:
    episodes = rollout(make_policy(task, "optimal"), lambda: lmrl.make(task), map(Start, range(30)), task=task)
    assert all(episode.success for _, episode in episodes)


def test_the_best_command_picks_the_food_up_from_wherever_it_lies() -> None:
    state = begin("living room")
    for order in ("take stale food from table", "go south", "drop stale food", "go north"):
        change = obey(state, order)
        assert change is not None
        state = change.state
    assert best_command(state) == "go south"


def test_no_probability() -> None:
    with pytest.raises(UserError, match="skill must be from 0 to 1, got -1"):
        TextNavPlayer(-1)
