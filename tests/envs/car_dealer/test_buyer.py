"""Tests of the scripted buyer: its utility model, worked by hand, and the words that show it."""

from itertools import product
from statistics import mean
from typing import Any

import pytest

import lmrl
from lmrl.envs.car_dealer.buyer import FAULTS, ScriptedBuyer, accepts, leaves, limit, listen
from lmrl.envs.car_dealer.lines import CHOICES, HINTS, MANNERS, SENTENCES, TERSE, Buyer, amounts, read
from lmrl.types import PartnerRequest
from tests.helpers.cases import cases

CAR = "A BMW sedan with a sunroof and heated seats"


def buyer(strategy: str, personality: str = "rude", **parts: Any) -> Buyer:
    standard = {"brand": "BMW", "type": "sedan", "features": ("sunroof", "heated seats"), "budget": 10_000}
    return Buyer(**{**standard, **parts, "strategy": strategy, "personality": personality})


def worth(who: Buyer, *heard: str) -> float:
    """Return the limit as a multiple of the budget, in percent."""
    return round(100 * limit(who, listen(who, heard, ()), 0.0) / who.budget, 2)


@cases(
    ("strategy", "heard", "percent"),
    [
        ("features", ["Hello"], 115 * 0.75 * 0.85 * 0.5),
        ("features", ["A BMW"], 115 * 0.85 * 0.5),
        ("features", ["A BMW sedan"], 115 * 0.5),
        ("features", ["A Ford sedan"], 115 * 0.75 * 0.5),
        ("features", ["A BMW truck"], 115 * 0.85 * 0.5),
        ("features", ["A BMW sedan with a sunroof"], 115 * 0.75),
        ("features", [CAR], 115),
        ("features", [CAR, "Or a Ford sedan"], 115 * 0.75 * 0.5),
        ("features", ["A BMW sedan with gps, leather, CarPlay and a sunroof"], 115 * 0.5),  # three are taken in
        ("features", ["Do you want a BMW sedan?"], 115 * 0.75 * 0.85 * 0.5),  # only asks
        ("impatient", [CAR], 115),
        ("impatient", ["A BMW sedan"], 115 * 0.95),
        ("impatient", [CAR, *"234567"], 115),
        ("impatient", [CAR, *"2345678"], 115 * 0.9),
        ("impatient", [CAR, *"23456789"], 115 * 0.75),
        ("impatient", [CAR, "a b c d e f g h i j k l m n o p q", *"34567"], 115 * 0.9),  # 17 words count twice
        ("impatient", [f"{CAR}. MSRP $12,000", "$11,500", "$11,000"], 115),
        ("impatient", [f"{CAR}. MSRP $12,000", "$11,500", "$11,000", "$10,500"], 115 * 0.85),
        ("impatient", [f"{CAR}. MSRP $12,000", "$11,500", "$11,000", "$10,500", "$10,000"], 115 * 0.7),
        ("discounts", [CAR], 115 * 0.5),
        ("discounts", [f"{CAR}. MSRP $12,000", "$11,000"], 115 * 0.7),
        ("discounts", [f"{CAR}. MSRP $12,000", "$11,000", "$10,800"], 115 * 0.85),
        ("discounts", [f"{CAR}. MSRP $12,000", "$11,000", "$10,800", "$10,700"], 115 * 0.85),  # the last is below 1 %
        ("discounts", [f"{CAR}. MSRP $12,000", "$11,000", "$10,850", "$10,700"], 115),
        ("discounts", [f"{CAR}. MSRP $12,000", "$11,700", "$11,400", "$11,000"], 115 * 0.85),  # less than 10 % in all
        ("discounts", [f"{CAR}. MSRP $12,000", "5% off", "another $200 off", "$400 less"], 115),
        ("discounts", ["A BMW sedan. MSRP $12,000", "$11,000", "$10,800", "$10,600"], 115 * 0.95),
    ],
)
def test_the_worth_of_what_was_told(strategy: str, heard: list[str], percent: float) -> None:
    assert worth(buyer(strategy), *heard) == pytest.approx(percent, abs=0.01)


@cases(
    ("heard", "said", "fault"),
    [
        (["Hello"], [], ""),
        (["?"], [], "empty"),
        (["Hello", "HELLO!"], [], "repeated"),
        (["Hello", "i want a BMW"], ["I want a BMW.\n"], "copied"),
        (["You fool"], [], "rude"),
        (["A BMW or a Ford"], [], "mixed"),
        (["A truck, a sedan"], [], "mixed"),
        (["Do you want a truck or a sedan?"], [], ""),
        (["A BMW for $15,001"], [], "outrageous"),
        (["A BMW for $15,000"], [], ""),
        (["A BMW. MSRP $16,000"], [], "outrageous"),
        (["A BMW for $9,000", "$9,500"], [], "raised"),
        (["A BMW. MSRP $9,000, for you $9,500"], [], "raised"),
        (["A BMW for $9,000", "A Ford for $9,500"], [], ""),  # another car
        (["A BMW for $9,000", "The MSRP is $8,000"], [], "raised"),
        (["A BMW for $9,000", "The MSRP is $10,000"], [], ""),
        (["A BMW. MSRP $10,000", "$9,000", "The MSRP is $8,000"], [], ""),
    ],
)
def test_faults(heard: list[str], said: list[str], fault: str) -> None:
    for strategy in CHOICES["strategy"]:
        clean = listen(buyer(strategy), heard[:-1], said).lines
        talk = listen(buyer(strategy), heard, said)
        assert (talk.fault, talk.lines) == (fault, clean + 1 + FAULTS.get(fault, 0))


def test_a_lower_msrp_lowers_the_price() -> None:
    offers = ["A BMW. MSRP $12,000", "$11,000", "The MSRP is $10,000"]
    assert [listen(buyer("discounts"), offers[:count], ()).price for count in (1, 2, 3)] == [12_000, 11_000, 10_000]
    assert listen(buyer("discounts"), offers, ()).cuts == 2
    assert listen(buyer("discounts"), [*offers, "$500 off"], ()).price == 9_500
    # A price below the new MSRP stands.
    assert listen(buyer("discounts"), [*offers[:2], "The MSRP is $11,500"], ()).price == 11_000


def test_what_a_faulty_line_says_is_not_taken_in() -> None:
    assert worth(buyer("features"), "A BMW sedan", f"{CAR}, you fool") == worth(buyer("features"), "A BMW sedan")
    assert listen(buyer("features"), ["A BMW sedan for $9,000", "$9,500"], ()).price == 9_000


@cases(("strategy", "lines"), [("discounts", 11), ("features", 11), ("impatient", 9)])
@cases(("personality", "more"), [("polite", 1), ("rude", 0), ("angry", -1)])
def test_patience(strategy: str, lines: int, personality: str, more: int) -> None:
    who = buyer(strategy, personality)
    heard = [f"line {number}" for number in range(20)]
    left = [leaves(who, listen(who, heard[:count], ())) for count in range(20)]
    assert left.index(True) == lines + more


def test_the_limit_is_sharp_and_noise_lowers_it() -> None:
    who = buyer("features")
    for price, taken in ((11_500, True), (11_501, False)):
        talk = listen(who, [f"{CAR} for ${price:,}"], ())
        assert all(accepts(who, talk, 0.0, seed) is taken for seed in range(50))
    share = [
        mean(accepts(who, listen(who, [f"{CAR} for ${price:,}"], ()), 0.1, seed) for seed in range(2_000))
        for price in (10_350, 10_925, 11_500)
    ]
    assert share == pytest.approx([1.0, 0.5, 0.0], abs=0.04)
    assert not accepts(who, listen(who, ["$100 dollars, $2,000"], ()), 0.0, 0)  # of which car?


def said(who: Buyer, *heard: str, seed: int = 0) -> str:
    """The buyer's newest answer."""
    partner = ScriptedBuyer(0.0)
    answers = list[str]()
    for count in range(1, len(heard) + 1):
        answers += partner.reply([PartnerRequest("car_dealer", who.facts(), heard[:count], tuple(answers), seed)])
    return answers[-1]


def test_what_buyers_say_shows_what_they_are() -> None:
    for strategy, personality, seed in product(CHOICES["strategy"], CHOICES["personality"], range(20)):
        who = buyer(strategy, personality, brand="Audi", type="SUV", budget=70_000)
        told = said(who, "What car are you looking for?", seed=seed)
        assert (read(told).brands, read(told).types) == (("Audi",), ("SUV",))
        assert amounts(said(who, "Hello", "What is your budget?", seed=seed)) == (70_000,)
        assert read(said(who, "Hello", "Which features do you need?", seed=seed)).features == who.features
        both = [said(who, *["Hello", "What is your budget?"][:count], seed=seed) for count in (1, 2)]
        assert sum(hint in line for hint in HINTS[strategy] for line in both) == 1
        others = [hint for other, hints in HINTS.items() if other != strategy for hint in hints]
        assert not any(hint in line for hint in others for line in both)


def test_objections_say_what_is_in_the_way() -> None:
    assert read(said(buyer("features"), "A Ford sedan for $9,000")).brands == ("BMW",)
    assert read(said(buyer("features"), "A BMW truck for $9,000")).types == ("sedan",)
    assert read(said(buyer("features"), "A BMW sedan with a sunroof")).features == ("heated seats",)
    assert "10,000" in said(buyer("impatient"), "A BMW sedan for $14,000")
    assert "discount" in said(buyer("discounts"), "A BMW sedan for $9,000")


@cases(
    ("heard", "output"),
    [
        (["A BMW. MSRP $14,000", "$13,000"], "Reject MSRP=$14,000"),
        (["A BMW for $13,000", "$12,000"], "Reject MSRP=$13,000"),
        (["A BMW for $99,000"], "Reject MSRP=$10,000"),
        (["Only $1,500!"], "Reject MSRP=$5,000"),
        ([f"{CAR}. MSRP $12,000", "$11,500"], "Accept MSRP=$12,000 Buy Price=$11,500"),
        ([f"{CAR} for $2,000"], "Accept MSRP=$2,000 Buy Price=$2,000"),
    ],
)
def test_decisions(heard: list[str], output: str) -> None:
    request = PartnerRequest(
        "car_dealer", buyer("features").facts(), heard, ["Hm."] * len(heard), 0, "Output: Decision="
    )
    assert ScriptedBuyer(0.0).reply([request]) == [output]


def test_the_same_request_gets_the_same_words_whatever_the_company() -> None:
    requests = [
        PartnerRequest("car_dealer", buyer(strategy, name).facts(), ("Hello\n",), (), seed)
        for strategy in CHOICES["strategy"] for name in CHOICES["personality"] for seed in range(5)
    ]  # fmt: skip
    together = ScriptedBuyer().reply(requests)
    assert together == [ScriptedBuyer().reply([request])[0] for request in requests]
    assert len({*together}) > 40
    assert ScriptedBuyer(0.2).describe() == {"name": "scripted buyer", "version": 1, "noise": 0.2}


def test_lines_are_short_ascii_and_never_a_decision_of_the_sellers() -> None:
    env = lmrl.make("car_dealer")
    lines = set()
    for seed in range(150):
        env.reset(seed=seed)
        for text in ("Output: Decision=Accept MSRP=$90,000 Buy Price=$90,000", *env.legal_actions()):
            text, _, done, _, _ = env.step(text)
            lines.add(text)
            assert "Output" not in text and "Decision" not in text
            if done:
                break
    assert len(lines) > 300
    assert all(text.isascii() and text.count("\n") == 1 and len(text.split()) <= 22 for text in lines)


def test_every_sentence_has_its_use() -> None:
    assert {*FAULTS, "accept", "reject"} < {*SENTENCES}
    assert {*TERSE} < {*SENTENCES}
    assert {*MANNERS} == {*CHOICES["personality"]} and {*HINTS} == {*CHOICES["strategy"]}
