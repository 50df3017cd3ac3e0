from collections import Counter
from functools import lru_cache
from statistics import mean

import pytest

import lmrl
from lmrl.envs.registry import make_policy, policy_names, recording
from lmrl.envs.twenty_questions.meaning import meaning
from lmrl.envs.twenty_questions.objects import place_of, things
from lmrl.envs.twenty_questions.players import Guesser, attentive
from lmrl.envs.twenty_questions.questions import common_properties
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Policy, Request, Start

TASK = "twenty_questions"
EVERY = [Start(0, {"word": thing.name}) for thing in things()]


def play(policy: Policy, starts: list[Start], **env: object) -> list[Episode]:
    return in_order(rollout(policy, lambda: lmrl.make(TASK, **env), starts, task=TASK))


@lru_cache(maxsize=1)
def recorded() -> list[Episode]:
    """The first episodes of the dataset: each object ten times."""
    recipe = recording(TASK)
    starts = [recipe.start(0, index) for index in range(1_580)]
    return in_order(rollout(recipe.policy, lambda: lmrl.make(TASK), starts, task=TASK, stop=recipe.stop))


def test_the_most_telling_questions_find_every_object() -> None:
    episodes = play(make_policy(TASK, "optimal"), EVERY)
    assert mean(episode.success for episode in episodes) >= 0.95
    # 158 objects need 7.3 answers at least, and the guess
    assert 7.3 <= mean(map(len, episodes)) <= 9


@pytest.mark.nightly
def test_skill_pays() -> None:
    starts = [Start(seed) for seed in range(150)]
    returns = [mean(e.total_reward for e in play(Guesser(attentive(skill)), starts)) for skill in (0, 0.2, 0.5, 1)]
    assert returns == sorted(returns)
    assert returns[0] < -19 and returns[-1] > -10
    with pytest.raises(UserError, match="attention must be from 0 to 1, got 2"):
        attentive(2)


@pytest.mark.nightly
def test_the_dataset_is_like_the_published_one() -> None:
    episodes = recorded()
    assert mean(map(len, episodes)) == pytest.approx(14.9, rel=0.05)
    assert mean(e.success for e in episodes) == pytest.approx(0.31, abs=0.04)
    assert all(e.truncated == (not e.success and len(e) < 20) for e in episodes)
    assert not any(e.illegal for e in episodes)


def test_the_player_of_the_dataset_alone_is_as_good_as_the_scale_says() -> None:
    episodes = play(make_policy(TASK, "behaviour"), [Start(seed) for seed in range(800)])
    assert mean(e.total_reward for e in episodes) == pytest.approx(-17.3, rel=0.07)
    assert not any(e.truncated for e in episodes)


def test_each_object_is_hidden_equally_often_and_mostly_found_soon() -> None:
    hidden = Counter(e.info["start"]["word"] for e in recorded())
    assert set(hidden.values()) == {10} and set(hidden) == set(place_of())
    found = {e.info["start"]["word"] for e in recorded() if e.success}
    assert len(found) >= 148  # of ten games each; the default dataset has 63
    orders = [[recording(TASK).start(0, index).options for index in range(n * 158, n * 158 + 158)] for n in (0, 1)]
    assert orders[0] != orders[1]


def test_questions_are_short_and_understood() -> None:
    said = {action for episode in recorded() for action in episode.actions}
    assert all(len(action.split()) <= 10 and action.endswith("?\n") and action.isascii() for action in said)
    assert all(meaning(action) for action in said)


def test_an_attentive_player_asks_only_what_is_open() -> None:
    for episode in play(Guesser(attentive(1)), [Start(seed) for seed in range(40)]):
        left = (1 << len(things())) - 1
        for action, text in zip(episode.actions, episode.observations[1:], strict=True):
            assert left & meaning(action), "yes would have been a surprise"
            left &= meaning(action) if text == "Yes.\n" else ~meaning(action)
        assert left == 1 << place_of()[episode.info["start"]["word"]]


def test_the_random_player_guesses_at_the_end() -> None:
    for episode in play(make_policy(TASK, "random"), [Start(seed) for seed in range(30)]):
        assert all(meaning(action).bit_count() == 1 for action in episode.actions[15:])


@pytest.mark.parametrize("name", policy_names(TASK))
def test_a_question_follows_from_seed_and_history(name: str) -> None:
    policy = make_policy(TASK, name)
    history = ("Questions:\n", "No.\n", "Yes.\n"), ("Is it alive?\n", "Is it made of metal?\n")
    some = [Request(0, seed, *history) for seed in range(30)]
    assert [policy.act([request]) for request in some] == [[reply] for reply in policy.act(some)]


@pytest.mark.parametrize("name", ["optimal", "behaviour"])
def test_contradictions_are_survived(name: str) -> None:
    episodes = play(make_policy(TASK, name), [Start(seed) for seed in range(60)], noise=0.1)
    assert 0 < mean(e.success for e in episodes) < 0.95
    asked = ("Is it alive?\n", "Is it a cat?\n", "Is it a fruit?\n")
    (reply,) = make_policy(TASK, name).act([Request(0, 1, ("Questions:\n", "No.\n", "Yes.\n", "Yes.\n"), asked)])
    assert meaning(reply.text)


@pytest.mark.parametrize("player", ["random", "behaviour"])
def test_the_last_phrasing_of_a_property_is_kept_for_the_test_of_an_oracle(player: str) -> None:
    episodes = play(make_policy("twenty_questions", player), [Start(seed) for seed in range(150)])
    said = {action.strip() for episode in episodes for action in episode.actions}
    asked = [{phrasing for phrasing in item.phrasings if phrasing in said} for item in common_properties()]
    assert not {item.phrasings[-1] for item in common_properties()} & said
    assert max(map(len, asked)) > 2
