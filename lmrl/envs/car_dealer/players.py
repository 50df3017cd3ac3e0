"""Scripted sellers of Car Dealer, and the recipe of the dataset.

Sellers see the lines of the dialogue and not the buyer's profile. The dataset has sellers of three styles, some of whom
adapt to the kind of buyer.

Source: LMRL-Gym, appendix C.8: sellers who give discounts, talk about features, or are concise, against buyers who love
discounts, want all features, or are impatient; matched pairs sell well.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from random import Random
from typing import Any

from lmrl.envs.car_dealer.lines import CHOICES, a_car, amounts, listed, noun, read
from lmrl.envs.task import Recording, recording_seed, turn_chance
from lmrl.types import Policy, Reply, Request, Start

__all__ = ["PLAYERS", "SELLER_SENTENCES", "BestSeller", "CarSeller", "RandomSeller", "recording", "take_notes"]

# Words by which a buyer shows the strategy; each of the buyer's `HINTS` matches its own.
_SIGNS: Mapping[str, re.Pattern[str]] = {
    "discounts": re.compile(r"discount|\blower\b|full price", re.I),
    "features": re.compile(r"\bfeatures\b|does it have|is there|what about (?!a discount)|\bwith\b.*\?", re.I),
    "impatient": re.compile(r"quick|hurry|little time", re.I),
}


@dataclass(frozen=True, slots=True)
class Notes:
    """The content of a conversation so far."""

    brand: str
    """Last brand that the buyer named; empty if none."""
    type: str
    features: tuple[str, ...]
    """All features that the buyer named."""
    budget: int
    """0 if unknown."""
    strategy: str
    """The strategy of the buyer's first sign; empty if there was none."""
    asked: frozenset[str]
    """Topics that the seller asked about."""
    offered: frozenset[str]
    """Brands that the seller named."""
    told: frozenset[str]
    """Features that the seller named for the newest car. The next three fields are also about that car."""
    msrp: int
    """0 if the seller did not name it."""
    price: int
    """The last price offered; 0 if there was none."""
    offers: int
    """Number of prices offered."""
    said: tuple[str, ...]
    """The seller's lines."""


def take_notes(request: Request) -> Notes:
    """Extract the content of the conversation."""
    # The buyer's lines: the newest brand, type and budget count, but the first sign of a strategy.
    wanted_brand = ""
    wanted_type = ""
    wishes: dict[str, None] = {}  # a set that keeps the order
    budget = 0
    strategy = ""
    for text in request.observations[1:]:
        line = read(text)
        wanted_brand = line.brands[-1] if line.brands else wanted_brand
        wanted_type = line.types[-1] if line.types else wanted_type
        wishes |= dict.fromkeys(line.features)
        for amount in amounts(text):
            budget = amount if amount in CHOICES["budget"] else budget
        for sign, pattern in _SIGNS.items():
            if not strategy and pattern.search(text):
                strategy = sign
    # The seller's lines.
    asked: set[str] = set()
    offered: set[str] = set()
    named: set[str] = set()
    brand = ""
    msrp = 0
    price = 0
    offers = 0
    for text in request.actions:
        line = read(text)
        asked.update(line.asks)
        offered.update(line.brands)
        if line.brands:
            # Another brand is another car: forget what was offered for the last one.
            if brand not in ("", line.brands[-1]):
                named = set()
                msrp = 0
                price = 0
                offers = 0
            brand = line.brands[-1]
        named.update(line.features)
        msrp = line.msrp or msrp
        if line.price:
            price = line.price
            offers += 1
    return Notes(
        brand=wanted_brand,
        type=wanted_type,
        features=tuple(wishes),
        budget=budget,
        strategy=strategy,
        asked=frozenset(asked),
        offered=frozenset(offered),
        told=frozenset(named),
        msrp=msrp,
        price=price,
        offers=offers,
        said=tuple(map(str.strip, request.actions)),
    )


class _Seller:
    """A policy that writes one line per request."""

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        return [Reply(self._line(request) + "\n") for request in requests]

    def _line(self, request: Request) -> str:
        raise NotImplementedError


_RANDOM_TEXTS = (
    "Hello! What car are you looking for?",
    "What is your budget?",
    "Which features do you need?",
    "I have a {brand} {type}. The MSRP is {price}.",
    "I can sell it for {price}.",
    "I can give you a discount. Now it is {price}.",
    "It has {features}.",
    "A {brand} {type} for {price}.",
    "It is a very good car.",
    "That is my best price.",
)


class RandomSeller(_Seller):
    """Draws one of ten sentences, and the car, price and features in it."""

    def _line(self, request: Request) -> str:
        chance = turn_chance(request)
        # Everything is drawn on every turn, even if the sentence does not use it.
        return chance.choice(_RANDOM_TEXTS).format(
            brand=chance.choice(CHOICES["brand"]),
            type=noun(chance.choice(CHOICES["type"])),
            price=f"${chance.randrange(5, 100) * 1_000:,}",
            features=listed(chance.sample(CHOICES["features"], 2)),
        )


_TEXTS = {
    "car": ("Hello! What car are you looking for?", "Welcome! Which car do you want?", "Hi, what car do you need?"),
    "hello": ("Hello! I am happy to help.", "Welcome to our shop!", "Good day!"),
    "budget": ("What is your budget?", "How much can you spend?"),
    "features": ("Which features do you need?", "What features do you want?"),
    "present": ("I have {a_car}. The MSRP is {msrp}.", "We have {a_car}. The MSRP is {msrp}."),
    "offer": ("I can sell it for {price}.", "You can have it for {price}.", "The price is {price}."),
    "cut": (
        "I can give you a discount. Now it is {price}.",
        "I can lower it to {price}.",
        "Special discount for you: {price}.",
        "Let me take more off. {price}.",
    ),
    "full offer": ("The MSRP is {msrp}. I can sell it for {price}.", "MSRP {msrp}. You can have it for {price}."),
    "show": ("I have {a_car} with {features}.", "We have {a_car} with {features}."),
    "tell": ("It has {features}.", "It comes with {features}.", "It also has {features}."),
    "quick": ("{A_car}. MSRP {msrp}, for you {price}.", "I have {a_car}. MSRP {msrp}, my price {price}."),
    "switch": ("Sorry. Then I have {a_car}.", "My mistake. We also have {a_car}."),
    "hold": ("That is my best price.", "The price is fair.", "I can not go lower.", "Take it or leave it."),
    "praise": (
        "It is a very good car.",
        "It is safe and comfortable.",
        "It drives very well.",
        "Everybody loves this car.",
        "You will enjoy it.",
    ),
}
_STEP = 500  # prices are multiples of this
_MIN_BUDGET_SHARE = 0.5  # no seller goes below this share of the budget


@dataclass(frozen=True, slots=True)
class Temper:
    """How a seller deals in this episode."""

    style: str
    """``discounts``, ``features`` or ``concise``."""
    ask: float
    """The first price, as a multiple of the budget."""
    msrp: float
    """The MSRP, as a multiple of the budget."""
    cut: float
    """What each discount takes off, as a share of the budget."""
    guess: int
    """The budget that the seller assumes while the buyer names none."""
    greets: bool
    """Whether the first line is a greeting instead of a question."""
    asks_budget: bool
    chat: float
    """How often the seller praises the car before naming a price."""
    brand: str = ""
    """A brand to offer instead of the wanted one; empty for none."""


Manner = Callable[[Request, Notes], Temper]
"""A function that chooses the temper of a seller from the episode so far."""


class CarSeller(_Seller):
    """A seller with a temper that a `Manner` chooses."""

    def __init__(self, manner: Manner) -> None:
        self._manner = manner

    def _line(self, request: Request) -> str:
        notes = take_notes(request)
        chance = turn_chance(request)
        temper = self._manner(request, notes)
        # A seller with a wrong brand offers that one first, and may switch when the buyer insists.
        if temper.brand in notes.offered and notes.brand not in notes.offered and chance.random() < 0.5:
            return _say("switch", notes, temper, chance)
        if notes.brand not in notes.offered:
            notes = replace(notes, brand=temper.brand or notes.brand)
        if notes.offered and not notes.price and chance.random() < temper.chat:
            return _say("praise", notes, temper, chance)
        if not notes.said:
            return _say("hello" if temper.greets else "car", notes, temper, chance)
        budget_open = not notes.budget and "budget" not in notes.asked and not notes.price
        if temper.asks_budget and budget_open:
            return _say("budget", notes, temper, chance)
        return _STYLES[temper.style](notes, temper, chance)


def _by_discounts(notes: Notes, temper: Temper, chance: Random) -> str:
    """Name the MSRP, then a price, then a discount each time."""
    if not notes.msrp:
        return _say("present", notes, temper, chance)
    if not notes.price:
        return _say("offer", notes, temper, chance, price=temper.ask)
    lower = notes.price / _budget(notes, temper) - temper.cut
    return _say("cut" if lower > _MIN_BUDGET_SHARE else "hold", notes, temper, chance, price=lower)


def _by_features(notes: Notes, temper: Temper, chance: Random) -> str:
    """Name all features, two at a time, then a price with at most one discount."""
    if "features" not in notes.asked and not notes.features:
        return _say("features", notes, temper, chance)
    missing = _missing_features(notes)
    if missing or not notes.told:
        kind = "tell" if notes.told else "show"
        return _say(kind, notes, temper, chance, features=missing[:2] or [chance.choice(CHOICES["features"])])
    return _one_step(notes, temper, chance, "full offer", "praise")


def _by_brevity(notes: Notes, temper: Temper, chance: Random) -> str:
    """Name a price as soon as the car is known, then at most one lower one."""
    return _one_step(notes, temper, chance, "quick", "hold")


def _one_step(notes: Notes, temper: Temper, chance: Random, first: str, then: str) -> str:
    """Name a price, at most one lower one, and then only talk."""
    if not notes.price:
        return _say(first, notes, temper, chance, price=temper.ask)
    if notes.offers == 1 and chance.random() < 0.5:
        return _say("offer", notes, temper, chance, price=notes.price / _budget(notes, temper) - temper.cut)
    return _say(then, notes, temper, chance)


_STYLES = {"discounts": _by_discounts, "features": _by_features, "concise": _by_brevity}


def _missing_features(notes: Notes) -> list[str]:
    """Return the features that the buyer wants and the seller did not name yet."""
    return [feature for feature in notes.features if feature not in notes.told]


def _budget(notes: Notes, temper: Temper) -> int:
    return notes.budget or temper.guess


def _say(
    kind: str, notes: Notes, temper: Temper, chance: Random, price: float = 1.0, features: Sequence[str] = ()
) -> str:
    """Return a sentence of a kind, if possible a new one; the price is a multiple of the budget."""
    car = a_car(notes.brand or "Toyota", notes.type or "sedan")
    budget = _budget(notes, temper)
    names = {
        "a_car": car,
        "A_car": car[0].upper() + car[1:],
        "msrp": f"${_rounded(max(temper.msrp, temper.ask) * budget):,}",
        "price": f"${_rounded(price * budget):,}",
        "features": listed(features) if features else "",
    }
    lines = [text.format_map(names) for text in _TEXTS[kind]]
    new_lines = [line for line in lines if line not in notes.said]
    return chance.choice(new_lines or lines)


def _rounded(dollars: float) -> int:
    return max(_STEP, round(dollars / _STEP) * _STEP)


_BEST_STEP = 100  # prices of the best seller are multiples of this
# Prices as multiples of the budget, one after the other until the buyer accepts one.
_LADDERS = {
    "discounts": (1.17, 1.14, 1.11, 1.08, 1.05, 1.02, 0.99),
    "features": (1.15, 1.12, 1.09, 1.06, 1.03, 1.0),
    "impatient": (1.1, 1.05, 1.0, 0.85),
}
# A multiple of the budget. Only buyers who love discounts learn it: it makes the first price a discount.
_MSRP = 1.35
_OFFERS = (
    "I can sell it for {}.",
    "I can give you a discount. Now it is {}.",
    "I can lower it to {}.",
    "Special discount for you: {}.",
)
_MOST_AT_ONCE = 3
SELLER_SENTENCES = (*_RANDOM_TEXTS, *chain.from_iterable(_TEXTS.values()), *_OFFERS, "It also has.")
"""All sentences of sellers, with names in braces for the parts that vary."""


class BestSeller(_Seller):
    """The best response to each strategy of the scripted buyer. It does not see the profile either."""

    def _line(self, request: Request) -> str:
        notes = take_notes(request)
        # Learn the car, the budget and the features, each by one question.
        if not notes.said:
            return "Hello! What car are you looking for?"
        if not notes.budget and "budget" not in notes.asked:
            return "What is your budget?"
        car = a_car(notes.brand, notes.type)
        if not notes.features and "features" not in notes.asked:
            return "Which features do you need?"
        missing = _missing_features(notes)
        named = listed(missing[:_MOST_AT_ONCE]) if missing else ""
        ladder = _LADDERS[notes.strategy or "features"]
        price = _dollars(ladder[min(notes.offers, len(ladder) - 1)] * notes.budget)
        # Impatient buyers get car and price in one short line, the others all features before the first price.
        if notes.strategy == "impatient" and not notes.told:
            return f"{car[0].upper()}{car[1:]} with {listed(missing[:2])} for {price}."
        if missing and not notes.told:
            return f"I have {car} with {named}."
        if notes.strategy == "discounts" and not notes.msrp:
            return f"{f'It also has {named}. ' if missing else ''}The MSRP is {_dollars(_MSRP * notes.budget)}."
        if missing:
            return f"It also has {named}. The price is {price}."
        return _OFFERS[notes.offers % len(_OFFERS)].format(price)


def _dollars(value: float) -> str:
    return f"${round(value / _BEST_STEP) * _BEST_STEP:,}"


PROB_MATCHED = 0.6
"""Share of the sellers who adopt the style that the buyer likes as soon as the buyer shows it."""

_STYLE_FOR = {"discounts": "discounts", "features": "features", "impatient": "concise"}

# The range of the first price, as multiples of the budget.
_ASKS = {"discounts": (1.1, 1.25), "features": (0.95, 1.2), "concise": (0.95, 1.2)}


def mixture(prob_matched: float, style: str | None = None) -> Manner:
    """Return a manner that draws a temper per episode.

    Args:
        prob_matched: share of the sellers who adapt their style to the buyer.
        style: the style of all others; None: each draws one.
    """

    def temper(request: Request, notes: Notes) -> Temper:
        # Drawn from the seed alone, so that a seller keeps the temper for the whole episode.
        chance = Random(f"temper {request.seed}")
        matched = chance.random() < prob_matched
        first_style = style or chance.choice(("discounts", "features", "concise"))
        style_now = _STYLE_FOR[notes.strategy] if matched and notes.strategy else first_style
        return Temper(
            style=style_now,
            ask=chance.uniform(*_ASKS[style_now]),
            msrp=chance.uniform(1.15, 1.35),
            cut=chance.uniform(0.03, 0.08),
            guess=chance.choice(CHOICES["budget"]),
            chat=0.2 if style_now == "concise" else chance.choice((0.2, 0.4, 0.6)),
            greets=chance.random() < 0.7,
            asks_budget=chance.random() < 0.95,
            brand=chance.choice(CHOICES["brand"]) if chance.random() < 0.1 else "",
        )

    return temper


def _player(make: Callable[[], Policy]) -> Callable[[Mapping[str, Any]], Policy]:
    return lambda env: make()


PLAYERS = {
    "random": _player(RandomSeller),
    "behaviour": _player(lambda: CarSeller(mixture(PROB_MATCHED))),
    "optimal": _player(BestSeller),
    "matched": _player(lambda: CarSeller(mixture(1.0))),
    "discounts": _player(lambda: CarSeller(mixture(0.0, "discounts"))),
    "features": _player(lambda: CarSeller(mixture(0.0, "features"))),
    "concise": _player(lambda: CarSeller(mixture(0.0, "concise"))),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """Return the recipe of the dataset, which is the same for every reward and buyer."""
    return Recording(policy=PLAYERS["behaviour"](env), start=lambda seed, index: Start(recording_seed(seed, index)))
