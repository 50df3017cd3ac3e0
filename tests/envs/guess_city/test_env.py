from collections.abc import Sequence
from typing import Any

import pytest

import lmrl
from lmrl.envs.guess_city.cities import cities
from lmrl.envs.guess_city.env import GuessCity
from lmrl.envs.guess_city.oracle import REFUSALS
from lmrl.errors import UserError
from lmrl.types import PartnerRequest
from tests.helpers.cases import cases


class Says:
    """A partner that says one thing, and keeps what it was asked."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.asked: list[PartnerRequest] = []

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        self.asked += requests
        return [self.text for _ in requests]

    def describe(self) -> dict[str, Any]:
        return {"name": "says"}


def game(city: str, text: str = "I see.") -> GuessCity:
    env = GuessCity(partner=Says(text))
    assert env.reset(seed=0, options={"city": city})[0] == "Questions:\n"
    return env


def test_twenty_questions_end_it_and_a_win_at_the_last_counts() -> None:
    env = game("Lima")
    for _ in range(19):
        assert env.step("Is it Rome?\n")[1:4] == (-1.0, False, False)
    text, reward, terminated, truncated, info = env.step("Is it Lima?\n")
    assert (text, reward, terminated, truncated, info["success"]) == ("Yes, you found it.\n", 0.0, True, False, True)
    env = game("Lima")
    turns = [env.step("Is it Rome?\n") for _ in range(20)]
    assert turns[-1][1:4] == (-1.0, True, False) and not turns[-1][4]["success"]


def test_a_right_guess_needs_no_partner_and_any_reply_to_another_question_is_no_win() -> None:
    env = game("Mumbai", "Yes, you found it.")
    assert not env.step("Is it Delhi?")[4]["success"]
    assert env.step("Is it Bombay?\n")[4]["success"]
    assert len(env.partner.asked) == 1  # type: ignore[attr-defined]


def test_the_partner_is_told_all_it_needs() -> None:
    env = game("Mumbai")
    env.step("  Is it\n big? ")
    env.step("Really?")
    request = env.partner.asked[-1]  # type: ignore[attr-defined]
    assert request.heard == ("Is it big?\n", "Really?\n") and request.said == ("I see.\n",)
    assert (request.facts["city"], request.facts["country"]) == ("Mumbai", "India")
    assert "Bombay" in request.facts["aliases"] and request.facts["facts"]["currency"] == ("rupee",)


@cases(
    ("reply", "text", "refused"),
    [
        ("I live in Lima.", None, True),
        ("It is Peru.", None, True),
        ("L i m a", "L i m a\n", False),  # four letters may be chance: "li", "ma"
        ("  Hot,\nvery  hot. ", "Hot, very hot.\n", False),
        ("", "I am not sure.\n", False),
        ("\u0410\u0411", "I am not sure.\n", False),
        ("caf\u00e9", "cafe\n", False),
        ("x" * 1000, "x" * 200 + "\n", False),
        ("\ufb03" * 150, ("ffi" * 67)[:200] + "\n", False),  # a ligature of three letters
    ],
)
def test_replies_of_any_form(reply: str, text: str | None, refused: bool) -> None:
    said, _, _, _, info = game("Lima", reply).step("Where?")
    assert said == text if text is not None else said.strip() in REFUSALS
    assert info["refused"] is refused


def test_texts_without_letters_are_illegal_and_cost_a_question() -> None:
    env = game("Lima")
    for text in ("", "\n", "?!", "123"):
        answer, reward, _, _, info = env.step(text)
        assert (answer, reward, info["illegal"]) == ("Please ask me a question.\n", -1.0, True)
    assert not env.step("Lim?")[4]["illegal"]
    assert len(env.partner.asked) == 1  # type: ignore[attr-defined]


def test_deterministic_and_drawn_cities() -> None:
    env = lmrl.make("guess_city", deterministic=True)
    drawn = [env.reset(seed=seed)[1]["start"]["city"] for seed in (0, 1, 99, 100, 205)]
    assert drawn == [cities()[place].name for place in (0, 1, 99, 0, 5)]
    assert env.reset(seed=7, options={"city": "Rome"})[1]["start"] == {"city": "Rome"}
    env = lmrl.make("guess_city")
    drawn = [env.reset(seed=seed)[1]["start"]["city"] for seed in range(1000)]
    assert len({*drawn}) == 100 and drawn[:100] != [city.name for city in cities()]
    assert drawn == [env.reset(seed=seed)[1]["start"]["city"] for seed in range(1000)]


def test_every_city_can_be_won_by_each_of_its_names() -> None:
    env = lmrl.make("guess_city")
    for city in cities():
        for name in city.names:
            env.reset(seed=0, options={"city": city.name})
            assert env.step(f"Is it {name}?\n")[4]["success"], name


def test_listing_all_cities_does_not_win() -> None:
    env = lmrl.make("guess_city")
    env.reset(seed=0, options={"city": "Rome"})
    assert not env.step(" ".join(city.name for city in cities()))[4]["success"]


def test_render_shows_the_talk() -> None:
    env = game("Lima")
    env.step("Big?")
    assert env.render() == "Questions:\nBig?\nI see.\n"


def test_wrong_arguments() -> None:
    with pytest.raises(UserError, match="unknown city 'Atlantis'; known: Abidjan, Addis"):
        lmrl.make("guess_city").reset(options={"city": "Atlantis"})
    with pytest.raises(UserError, match=r"unknown city \"\['Rome'\]\""):
        lmrl.make("guess_city").reset(options={"city": ["Rome"]})
    with pytest.raises(UserError, match="noise must be from 0 to 1, got -1"):
        lmrl.make("guess_city", noise=-1)
    for settings in ({"noise": 0.2}, {"candor": 0.5}):
        with pytest.raises(UserError, match="noise and candor must be left out where a partner is given"):
            GuessCity(Says("Hm."), **settings)
