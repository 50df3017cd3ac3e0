from collections.abc import Sequence
from typing import Any

import pytest

import lmrl
from lmrl.envs.car_dealer.env import CarDealer, Sale, find_sale
from lmrl.envs.car_dealer.lines import CHOICES, Buyer
from lmrl.errors import UserError
from lmrl.types import PartnerRequest
from tests.helpers.cases import cases

BUYER = {
    "personality": "polite",
    "brand": "Audi",
    "type": "sedan",
    "features": ["sunroof", "heated seats"],
    "budget": 30_000,
    "strategy": "discounts",
}


class Says:
    """A buyer who says what it was given, and remembers what it was asked."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.asked = list(lines), list[PartnerRequest]()

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        self.asked += requests
        return [self.lines.pop(0) for _ in requests]

    def describe(self) -> dict[str, Any]:
        return {"name": "says"}


def game(partner: Says, **settings: Any) -> CarDealer:
    env = CarDealer(partner, **settings)
    env.reset(seed=5, options=BUYER)
    return env


@cases(
    ("line", "shown", "sale"),
    [
        ("Output: Decision=Accept MSRP=$31,000 Buy Price=$29,500", "", Sale(True, 31_000, 29_500)),
        ("Sold. Output: Decision=Reject MSRP=$31,000", "Sold.", Sale(False, 31_000)),
        ("No. Output: Decision=Reject MSRP=$31,000 Bye!", "No. Bye!", Sale(False, 31_000)),
        ("Output: Decision=Accept MSRP=31000 Buy Price=29500.", "", Sale(True, 31_000, 29_500)),
        ("Output: Decision=Accept MSRP=$31,000", "", Sale(True, 31_000, None)),
        ("Output: Decision=Accept MSRP=$31,000 Buy Price=None", "", Sale(True, 31_000, None)),
        ("Output: Decision=Accept MSRP=$31,000 Buy Price=$1,000,000", "", Sale(True, 31_000, None)),
        ("Output: Decision=Reject MSRP=$31,000 Buy Price=$5", "", Sale(False, 31_000)),
        ("Output: Decision=Accept MSRP=$0 Buy Price=$29,500", None, None),
        ("Output: Decision=Maybe MSRP=$31,000", None, None),
        ("Decision=Accept MSRP=$31,000 Buy Price=$29,500", None, None),
    ],
)
def test_decisions_by_hand(line: str, shown: str | None, sale: Sale | None) -> None:
    assert find_sale(line) == (line if shown is None else shown, sale)


@pytest.mark.parametrize(
    ("sale", "fancy", "revenue"),
    [
        (Sale(True, 30_000, 30_000), 0.75, 30.0),  # 30 / (.5 * (50 + 30))
        (Sale(True, 30_000, None), 0.0, 0.0),
        (Sale(False, 25_000), -1.0, 0.0),
        (Sale(False, 100_000), 0.5, 0.0),  # a car above the budget: the original's odd sign
        (Sale(False, 0), 0.0, 0.0),
    ],
)
def test_rewards_by_hand(sale: Sale, fancy: float, revenue: float) -> None:
    assert (sale.reward("fancy", 50_000), sale.reward("revenue", 50_000)) == (fancy, revenue)


@pytest.mark.parametrize(("reward", "expected"), [("revenue", 29.5), ("fancy", 29_500 / 30_500)])
def test_a_sale_ends_the_episode_and_hides_its_record(reward: str, expected: float) -> None:
    env = game(Says("Hm.\n", "Okay. Output: Decision=Accept MSRP=$31,000 Buy Price=$29,500\n"), reward=reward)
    assert env.step("Hello\n")[:4] == ("Hm.\n", 0.0, False, False)
    text, got, terminated, truncated, info = env.step("Deal?\n")
    assert (text, terminated, truncated, info["success"]) == ("Okay.\n", True, False, True)
    assert got == pytest.approx(expected) and got == info[reward]
    assert info["output"] == {"car_bought": True, "msrp": 31_000, "buy_price": 29_500}
    assert env.render() == "Start\nSeller: Hello\nBuyer: Hm.\nSeller: Deal?\nBuyer: Okay.\n"


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("Accept MSRP=$31,000 Buy Price=$29,500", 29.5),
        (" Accept MSRP=$31,000 Buy Price=$29,500", 29.5),
        ("Output: Decision=Accept MSRP=$31,000 Buy Price=$29,500", 29.5),
        ("Reject MSRP=$31,000", 0.0),
        ("I do not know", 0.0),
    ],
)
def test_the_last_question_begins_the_answer(completion: str, reward: float) -> None:
    partner = Says("a", "b", completion)
    env = game(partner, max_texts=4)
    assert env.step("one")[2] is False
    text, got, terminated, truncated, info = env.step("two\n")
    assert (text, got, terminated, truncated, info["success"]) == ("b\n", reward, True, False, reward > 0)
    last = partner.asked[-1]
    assert (last.begin, last.heard, last.said) == ("Output: Decision=", ("one\n", "two\n"), ("a\n", "b\n"))
    assert [request.begin for request in partner.asked] == ["", "", "Output: Decision="]


def test_by_default_the_last_question_comes_after_fifty_lines() -> None:
    partner = Says(*["Hm."] * 25, "Accept MSRP=$9,000 Buy Price=$9,000")
    env = game(partner)
    turns = [env.step(f"{number}\n") for number in range(25)]
    assert [turn[2] for turn in turns] == [False] * 24 + [True]
    assert turns[-1][1] == 9.0


def test_the_scripted_buyer_completes_the_last_question() -> None:
    for price, reward in ((33_000, 33.0), (34_600, 0.0)):
        env = lmrl.make("car_dealer", noise=0.0, max_texts=2)
        env.reset(seed=0, options={**BUYER, "strategy": "features"})
        _, got, done, _, info = env.step(f"An Audi sedan with a sunroof and heated seats for ${price:,}.\n")
        assert (got, done, info["output"]["msrp"]) == (reward, True, price)


def test_what_the_buyer_is_told() -> None:
    partner = Says("Hm.", "\n\n Two \n lines ")
    env = game(partner)
    env.step("Line one\nOutput: Decision=Accept\r\n" + "x" * 1_000)
    assert env.step("")[0] == "Two lines\n"
    request = partner.asked[0]
    assert request.heard[0].startswith("Line one Output: Decision=Accept xxx") and len(request.heard[0]) == 513
    assert {name: request.facts[name] for name in BUYER} == BUYER
    assert request.facts["profile"] == (
        "Personality: polite. Prefers an Audi sedan with sunroof, heated seats. Budget: $30,000\n"
    )
    assert partner.asked[1].said == ("Hm.\n",) and partner.asked[1].heard[1] == "\n"


def test_only_a_line_without_words_is_illegal() -> None:
    env = game(Says(*["Hm."] * 4))
    assert [env.step(line)[4]["illegal"] for line in ("", "\n", "?!\n", "Hi\n")] == [True, True, True, False]


def test_the_seed_draws_every_part_of_a_profile() -> None:
    env = lmrl.make("car_dealer")
    starts = [env.reset(seed=seed)[1]["start"] for seed in range(600)]
    for name, values in CHOICES.items():
        drawn = [each for start in starts for each in (start[name] if name == "features" else [start[name]])]
        assert {*drawn} == {*values}
        assert max(map(drawn.count, values)) < 2 * min(map(drawn.count, values))
    assert {len(start["features"]) for start in starts} == {1, 2, 3, 4}
    assert all(len({*start["features"]}) == len(start["features"]) for start in starts)


def test_a_part_can_be_fixed() -> None:
    env = lmrl.make("car_dealer")
    free, fixed = (env.reset(seed=3, options=options)[1]["start"] for options in ({}, {"strategy": "impatient"}))
    assert fixed == {**free, "strategy": "impatient"} != free
    assert Buyer(**{**BUYER, "features": ("sunroof", "heated seats")}).facts() == BUYER


@cases(
    ("options", "message"),
    [
        ({"budget": 20_000}, "budget must be one of 10000, 30000, .*, got 20000"),
        ({"brand": "BWM"}, "brand must be one of Volkswagen, .*, got 'BWM'"),
        ({"features": []}, "features must be a list of one to four different ones"),
        ({"features": ["sunroof", "sunroof"]}, "features must be a list of one to four different ones"),
        ({"features": ["wings"]}, "features must be one of backup camera, .*, got 'wings'"),
        ({"features": [["sunroof"]]}, r"features must be one of backup camera, .*, got \['sunroof'\]"),
        ({"colour": "red"}, "unknown reset option 'colour'"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lmrl.make("car_dealer").reset(options=options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reward": "profit"}, "reward must be revenue or fancy, got 'profit'"),
        ({"max_texts": 7}, "max_texts must be an even number from 2, got 7"),
        ({"noise": 1.0}, "noise must be in \\[0, 1\\), got 1.0"),
        ({"partner": Says(), "noise": 0.2}, "noise must be left out where a partner is given: .* got 0.2"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        lmrl.make("car_dealer", **settings)
