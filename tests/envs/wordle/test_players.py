import math
from collections import Counter
from pathlib import Path
from statistics import mean, pstdev

import pytest

import lmrl
from lmrl.envs.registry import make_policy, policy_names, recording
from lmrl.envs.wordle.env import colors, word_of
from lmrl.envs.wordle.players import WordlePlayer, mixture
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Policy, Request, Start
from tests.helpers.cases import cases

WORDS = lmrl.make("wordle").vocabulary.words


def play(policy: Policy, starts: list[Start], **env: object) -> list[Episode]:
    return in_order(rollout(policy, lambda: lmrl.make("wordle", **env), starts, task="wordle"))


def games(name: str, count: int = 300) -> list[Episode]:
    return play(make_policy("wordle", name), [Start(seed) for seed in range(count)])


def agrees(episode: Episode, turn: int) -> bool:
    """Whether the guess of that turn agrees with all feedback before it, by the rules themselves."""
    guess = word_of(episode.actions[turn])
    said = zip(episode.actions[:turn], episode.observations[1:], strict=False)
    return all(colors(word_of(action), guess) == word_of(text) for action, text in said)


def test_the_best_guess_plays_near_the_best_possible() -> None:
    every = [Start(0, {"word": word}) for word in WORDS]
    episodes = play(make_policy("wordle", "optimal"), every)
    assert all(episode.success for episode in episodes)
    assert -2.05 <= mean(episode.total_reward for episode in episodes) <= -1.8
    first = word_of(episodes[0].actions[0])
    assert {episode.actions[0] for episode in episodes} == {episodes[0].actions[0]}
    assert information(first) == pytest.approx(max(map(information, WORDS[::9])), abs=0.5)
    assert information(first) >= max(map(information, WORDS[::9]))


def information(guess: str) -> float:
    """Bits that the colours of a first guess tell."""
    shares = [count / len(WORDS) for count in Counter(colors(guess, word) for word in WORDS).values()]
    return -sum(share * math.log2(share) for share in shares)


@pytest.mark.parametrize(("share", "value", "within"), [(0.0, -5.95, 0.05), (0.33, -4.12, 0.15), (1.0, -2.39, 0.15)])
def test_mixtures_play_as_the_published_ones(share: float, value: float, within: float) -> None:
    episodes = play(WordlePlayer(mixture(share)), [Start(seed) for seed in range(2_000)])
    assert mean(episode.total_reward for episode in episodes) == pytest.approx(value, abs=within)


def test_the_dataset_is_like_the_published_one() -> None:
    recipe = recording("wordle")
    starts = [recipe.start(0, index) for index in range(2_000)]
    episodes = play(recipe.policy, starts)
    lengths = [len(e) for e in episodes]
    returns = [e.total_reward for e in episodes]
    assert mean(lengths) == pytest.approx(4.82, rel=0.05) and pstdev(lengths) == pytest.approx(1.27, rel=0.1)
    assert mean(returns) == pytest.approx(-4.12, rel=0.05) and pstdev(returns) == pytest.approx(1.59, rel=0.1)
    assert mean(e.success for e in episodes) == pytest.approx(0.70, rel=0.06)


def test_consistent_guesses_agree_and_wrong_ones_do_not() -> None:
    assert all(agrees(e, turn) for e in games("consistent") for turn in range(len(e)))
    assert not any(agrees(e, turn) for e in games("wrong") for turn in range(1, len(e)))


def test_openers_open_and_repeaters_repeat() -> None:
    openers = {word_of(episode.actions[0]) for episode in games("opener")}
    assert 2 <= len(openers) <= 28 and "crane" not in openers  # crane is none of the 431
    assert all(len(set(episode.actions)) == 1 for episode in games("repeated", 50))


@cases("name", policy_names("wordle"))
def test_a_guess_follows_from_seed_and_history(name: str) -> None:
    policy = make_policy("wordle", name)
    some = [Request(0, seed, ("Wordle:\n", "b y g b b\n"), ("c r a n e\n",)) for seed in range(20)]
    assert [policy.act([request]) for request in some] == [[reply] for reply in policy.act(some)]


def test_illegal_guesses_tell_nothing_and_strange_feedback_is_survived() -> None:
    policy = make_policy("wordle", "consistent")
    history = ("Wordle:\n", "\n", "g g g g g\n"), ("zz\n", "z z z z z\n")
    (reply,) = policy.act([Request(0, 1, *history)])
    assert word_of(reply.text) in WORDS


def test_players_learn_the_vocabulary_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("zzzzz\nyyyyy\nxxxxx\n")
    env = {"vocab": str(path)}
    for name in policy_names("wordle"):
        episodes = play(make_policy("wordle", name, env), [Start(seed) for seed in range(5)], **env)
        assert sum(episode.illegal for episode in episodes) == 0


def test_no_probability() -> None:
    with pytest.raises(UserError, match="prob_smart must be from 0 to 1, got 2"):
        mixture(2)
