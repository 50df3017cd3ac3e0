from pathlib import Path

import pytest

import lmrl
from lmrl.envs.wordle.env import Wordle, colors, word_of
from lmrl.errors import UserError
from tests.helpers.cases import cases


@cases(
    ("guess", "word", "simple", "counted"),
    [
        ("crane", "slate", "bbgbg", "bbgbg"),
        ("motor", "actor", "byggg", "bbggg"),  # the first o is coloured only where copies are not counted
        ("apple", "paper", "yygby", "yygby"),
        ("eerie", "erase", "gyybg", "gbybg"),
        ("speed", "erase", "ybyyb", "ybyyb"),
        ("abbey", "kebab", "yygyb", "yygyb"),
        ("kebab", "abbey", "bygyy", "bygyy"),
        ("level", "wheel", "yybgg", "bybgg"),
        ("creek", "creek", "ggggg", "ggggg"),
    ],
)
def test_colors_by_hand(guess: str, word: str, simple: str, counted: str) -> None:
    assert (colors(guess, word, False), colors(guess, word, True)) == (simple, counted)


def test_only_the_word_itself_is_all_green() -> None:
    words = lmrl.make("wordle").vocabulary.words
    assert all((colors(guess, word) == "ggggg") == (guess == word) for guess in words for word in words[::7])


def test_how_actions_are_read() -> None:
    assert [word_of(text) for text in ("c r a n e\n", " crane", "C r a n e", "c r\na n e")] == [
        "crane", "crane", "Crane", "cr\nane"
    ]  # fmt: skip


def play(env: Wordle, word: str, *guesses: str) -> list[tuple[str, float, bool, bool, bool]]:
    env.reset(seed=0, options={"word": word})
    answers = [env.step(guess) for guess in guesses]
    return [(text, reward, done, cut, info["illegal"]) for text, reward, done, cut, info in answers]


def test_a_bad_word_costs_what_was_asked_and_a_try() -> None:
    env = Wordle(bad_word_reward=-10)
    assert env.return_range == (-60.0, 0.0)
    answers = play(env, "apple", "zzzzz", "apples", "", "ap ple x", "paper", "q")
    assert [answer[1] for answer in answers] == [-10, -10, -10, -10, -1, -10]
    assert [answer[4] for answer in answers] == [True, True, True, True, False, True]
    assert answers[-1] == ("\n", -10.0, True, False, True)


def test_the_seed_draws_every_word() -> None:
    env = lmrl.make("wordle")
    drawn = [env.reset(seed=seed)[1]["start"]["word"] for seed in range(3_000)]
    assert drawn[:500] == [env.reset(seed=seed)[1]["start"]["word"] for seed in range(500)]
    assert len(set(drawn)) > 425  # of 431; each is missed with probability .001
    assert max(map(drawn.count, set(drawn))) < 25


def test_another_list_of_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("zzzzz\nyyyyy\n")
    env = lmrl.make("wordle", vocab=str(path))
    assert env.legal_actions() == ["z z z z z\n", "y y y y y\n"]
    assert play(env, "zzzzz", "apple", "yyyyy", "zzzzz") == [
        ("\n", -1.0, False, False, True),
        ("b b b b b\n", -1.0, False, False, False),
        ("g g g g g\n", 0.0, True, False, False),
    ]
    assert env.render() == "Wordle:\napple\n\nyyyyy\nb b b b b\nzzzzz\ng g g g g\n"


def test_copies_counted_in_the_game() -> None:
    assert play(Wordle(counted=True), "actor", "motor")[0][0] == "b b g g g\n"


def test_a_refused_reset_leaves_the_running_game() -> None:
    env = Wordle()
    env.reset(seed=0, options={"word": "apple"})
    env.step("paper")
    for word in ("zzzzz", 5):
        with pytest.raises(UserError, match="word must be one of"):
            env.reset(options={"word": word})
    assert env.step("apple")[:3] == ("g g g g g\n", 0.0, True)
    assert env.render() == "Wordle:\npaper\ny y g y b\napple\ng g g g g\n"


def test_wrong_arguments() -> None:
    with pytest.raises(UserError, match="bad_word_reward must be at most 0, got 1"):
        Wordle(bad_word_reward=1)
    with pytest.raises(UserError, match="word must be one of the 431 words of the vocabulary, got 'zzzzz'"):
        Wordle().reset(options={"word": "zzzzz"})
    for word in (5, ["apple"]):
        with pytest.raises(UserError, match="word must be one of the 431 words of the vocabulary, got"):
            Wordle().reset(options={"word": word})
    with pytest.raises(UserError, match="unknown reset option 'wrod'"):
        Wordle().reset(options={"wrod": "apple"})
