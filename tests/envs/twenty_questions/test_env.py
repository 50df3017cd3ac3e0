from collections.abc import Sequence
from typing import Any

import pytest

import lmrl
from lmrl.envs.twenty_questions.env import QUESTIONS, TwentyQuestions, guess_of
from lmrl.envs.twenty_questions.objects import things
from lmrl.errors import UserError
from lmrl.rollout import step_together
from lmrl.types import PartnerRequest
from tests.helpers.cases import cases


class Parrot:
    """Says the same to everything, and keeps what it was asked."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[Sequence[PartnerRequest]] = []

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        self.asked.append(requests)
        return [self.text for _ in requests]

    def describe(self) -> dict[str, Any]:
        return {"name": "parrot"}


def begun(word: str = "Cat", **arguments: Any) -> TwentyQuestions:
    env = TwentyQuestions(**arguments)
    env.reset(seed=0, options={"word": word})
    return env


def test_what_the_row_says() -> None:
    row = lmrl.task("twenty_questions")
    assert (row.last_texts, row.max_action_tokens, row.dataset_size) == (None, 24, 60_000)
    assert (row.scores.minimum, row.scores.average, row.scores.maximum) == (-20, -17.3, -12.6)


def test_a_win_at_the_last_question_gives_19_and_no_win_20() -> None:
    for last, total in (("Is it a cat?\n", -19.0), ("Is it a dog?\n", -20.0)):
        env = begun()
        turns = [env.step("Is it alive?\n") for _ in range(QUESTIONS - 1)]
        assert not any(turn[2] or turn[3] for turn in turns)
        turns.append(env.step(last))
        assert turns[-1][2:4] == (True, False)
        assert sum(turn[1] for turn in turns) == total
        assert turns[-1][4]["success"] == (total == -19)


def test_the_first_question_may_win() -> None:
    assert begun().step("Is it a cat?\n")[:4] == ("Yes.\n", 0.0, True, False)
    assert begun("Pants").step("Is it a pair of pants?\n")[1] == 0.0


def test_yes_to_a_question_about_a_sort_is_no_win() -> None:
    assert begun().step("Is it an animal?\n")[:3] == ("Yes.\n", -1.0, False)


def test_a_win_needs_the_oracles_yes_and_a_guess() -> None:
    assert begun(partner=Parrot("No.")).step("Is it a cat?\n")[:3] == ("No.\n", -1.0, False)
    assert begun(partner=Parrot("Yes.")).step("Is it a cat or a dog?\n")[:3] == ("Yes.\n", -1.0, False)
    assert begun("Dog", partner=Parrot("Yes.")).step("Is it a cat or a dog?\n")[:3] == ("Yes.\n", -1.0, False)


@cases(
    ("said", "heard"),
    [("Yes.", "Yes.\n"), (" yes, it is", "Yes.\n"), ("YES", "Yes.\n"), ("", "No.\n"), ("It is a cat.", "No.\n"),
     ("no", "No.\n"), ("No, not yes", "No.\n"), ("\ud83d\ude00", "No.\n")],
)  # fmt: skip
def test_any_reply_becomes_yes_or_no(said: str, heard: str) -> None:
    assert begun(partner=Parrot(said)).step("Is it alive?\n")[0] == heard


def test_what_the_partner_is_told() -> None:
    partner = Parrot("No.")
    env = begun("Pants", partner=partner)
    env.step("Is it alive?\n")
    env.step("...\n")  # illegal: nobody is asked
    env.step("Is it worn?\n")
    (first,), (second,) = partner.asked
    assert first.facts == {"word": "Pants", "variants": ("Pants", "Pant", "Pair of pants")}
    assert (first.heard, first.said) == (("Is it alive?\n",), ())
    assert (second.heard, second.said) == (("Is it alive?\n", "...\n", "Is it worn?\n"), ("No.\n", "No.\n"))


def test_a_text_without_words_is_illegal_and_costs_a_question() -> None:
    env = begun()
    text, reward, terminated, _, info = env.step(" ?!\n")
    assert (text, reward, terminated, info["illegal"]) == ("No.\n", -1.0, False, True)
    assert env.step("Is it alive?\n")[4]["illegal"] is False
    assert env.render() == "Questions:\n ?! No.\nIs it alive? Yes.\n"


def test_environments_ask_their_common_oracle_together() -> None:
    partner = Parrot("No.")
    envs = [begun(partner=partner) for _ in range(5)]
    step_together([(slot, env, "Is it alive?\n") for slot, env in enumerate(envs)])
    assert [len(asked) for asked in partner.asked] == [5]
    assert TwentyQuestions().partner is TwentyQuestions().partner


def test_the_seed_hides_any_object_and_in_deterministic_mode_its_own() -> None:
    env = TwentyQuestions()
    drawn = [env.reset(seed=seed)[1]["start"]["word"] for seed in range(1_500)]
    assert drawn[:200] == [env.reset(seed=seed)[1]["start"]["word"] for seed in range(200)]
    assert len(set(drawn)) > 155 and max(map(drawn.count, set(drawn))) < 30
    names = [thing.name for thing in things()]
    fixed = TwentyQuestions(deterministic=True)
    assert [fixed.reset(seed=seed)[1]["start"]["word"] for seed in range(320)] == (names * 3)[:320]
    assert env.reset(seed=159, options={"deterministic": True})[1]["start"] == {"word": names[1]}
    assert fixed.reset(seed=0, options={"word": "Drill"})[1]["task_id"] == "Drill"


def test_noise_changes_answers() -> None:
    assert begun(noise=1.0).step("Is it alive?\n")[0] == "No.\n"


def test_every_object_can_be_guessed() -> None:
    for thing in things():
        assert begun(thing.name).step(guess_of(thing))[1:3] == (0.0, True), thing.name


def test_wrong_arguments() -> None:
    with pytest.raises(UserError, match="word must be one of the 158 objects, got 'Unicorn'"):
        TwentyQuestions().reset(options={"word": "Unicorn"})
    with pytest.raises(UserError, match=r"word must be one of the 158 objects, got \['Cat'\]"):
        TwentyQuestions().reset(options={"word": ["Cat"]})
    with pytest.raises(UserError, match="noise must be from 0 to 1, got -1"):
        TwentyQuestions(noise=-1)
    with pytest.raises(UserError, match="noise must be 0 where a partner is given"):
        TwentyQuestions(partner=Parrot("No."), noise=0.5)
