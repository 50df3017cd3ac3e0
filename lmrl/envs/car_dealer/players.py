"""Scripted sellers of Car Dealer, which read the lines alone, and the recipe of the dataset.

Scripted sellers of Car Dealer: one for each kind of buyer, and those who choose among them.

Each is a function from what was said and a `Temper` to the next line. Sellers see the buyer's lines and no profile.

The recipe of the car dealer dataset: sellers of three styles, some of whom notice what kind of buyer they have.

Source: LMRL-Gym, appendix C.8: sellers who give discounts, talk about features, or are concise, against buyers who love
discounts, want all features, or are impatient; matched pairs sell well.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from lmrl.envs.car_dealer.lines import CHOICES, HINTS, Line, a_car, amounts, listed, noun, read
from lmrl.envs.task import Recording, recording_seed, turn_chance
from lmrl.types import Policy, Reply, Request, Start

__all__ = [
    "PLAYERS",
    "PROB_MATCHED",
    "SELLER_SENTENCES",
    "BestSeller",
    "CarSeller",
    "Manner",
    "Notes",
    "RandomSeller",
    "Temper",
    "recording",
    "take_notes",
]

_SIGNS: Mapping[str, re.Pattern[str]] = {
    "discounts": re.compile(r"discount|\blower\b|full price", re.I),
    "features": re.compile(r"\bfeatures\b|does it have|is there|what about (?!a discount)|\bwith\b.*\?", re.I),
    "impatient": re.compile(r"quick|hurry|little time", re.I),
}
"""By which words a buyer shows the strategy; `HINTS` all hold one."""
assert all(_SIGNS[strategy].search(hint) for strategy, hints in HINTS.items() for hint in hints)


@dataclass(frozen=True, slots=True)
class Notes:
    """The words of the buyer and the actions of the seller so far."""

    brand: str
    """Last brand that the buyer named; empty if none."""
    type: str
    features: tuple[str, ...]
    """All that the buyer named."""
    budget: int
    """0 if unknown."""
    strategy: str
    """As the first sign has it; empty if there was none."""
    asked: frozenset[str]
    """Topics that the seller asked about."""
    offered: frozenset[str]
    """Brands that the seller named."""
    told: frozenset[str]
    """Features that the seller named for the newest car, as the following are for it alone."""
    msrp: int
    """0 if it was not told."""
    price: int
    """The last price offered; 0 if there was none."""
    offers: int
    """How many prices were offered."""
    said: tuple[str, ...]
    """The seller's lines."""


def take_notes(request: Request) -> Notes:
    """Read the conversation."""
    buyer = [read(text) for text in request.observations[1:]]
    seller = [read(text) for text in request.actions]
    sums = [value for text in request.observations[1:] for value in amounts(text) if value in CHOICES["budget"]]
    car = seller[_newest_car(seller) :]
    prices = [line.price for line in car if line.price]
    return Notes(
        brand=next((line.brands[-1] for line in reversed(buyer) if line.brands), ""),
        type=next((line.types[-1] for line in reversed(buyer) if line.types), ""),
        features=tuple(dict.fromkeys(feature for line in buyer for feature in line.features)),
        budget=sums[-1] if sums else 0,
        strategy=next(filter(None, map(_sign, request.observations[1:])), ""),
        asked=frozenset(topic for line in seller for topic in line.asks),
        told=frozenset(feature for line in car for feature in line.features),
        offered=frozenset(brand for line in seller for brand in line.brands),
        msrp=next((line.msrp for line in reversed(car) if line.msrp), 0),
        price=prices[-1] if prices else 0,
        offers=len(prices),
        said=tuple(text.strip() for text in request.actions),
    )


def _newest_car(lines: Sequence[Line]) -> int:
    """Where the seller began to speak of another brand; 0 if it was one all the time."""
    place = 0
    brand = ""
    for number, line in enumerate(lines):
        if line.brands and brand not in ("", line.brands[-1]):
            place = number
        brand = line.brands[-1] if line.brands else brand
    return place


def _sign(text: str) -> str:
    return next((strategy for strategy, pattern in _SIGNS.items() if pattern.search(text)), "")


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


class RandomSeller:
    """Draws one of ten sentences, and what it names."""

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A line for each request."""
        return [Reply(_random_line(turn_chance(request)) + "\n") for request in requests]


def _random_line(chance: Random) -> str:
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
_STEP = 500
"""Prices are multiples of this."""
_LEAST = 0.5
"""No seller goes below this share of the budget."""


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
    """The budget that is taken for granted where none was named."""
    greets: bool
    """Begins without a question."""
    asks_budget: bool
    chat: float
    """How often it praises the car before it names a price."""
    brand: str = ""
    """Offered instead of the brand that is wanted, if not empty."""


Manner = Callable[[Request, Notes], Temper]
"""From an episode so far to how the seller goes on."""


class CarSeller:
    """Says what its manner tells it to."""

    def __init__(self, manner: Manner) -> None:
        self._manner = manner

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A line for each request."""
        return [Reply(_line(request, self._manner) + "\n") for request in requests]


def _line(request: Request, manner: Manner) -> str:
    notes = take_notes(request)
    chance = turn_chance(request)
    temper = manner(request, notes)
    if temper.brand in notes.offered and notes.brand not in notes.offered and chance.random() < 0.5:
        return _say("switch", notes, temper, chance)
    if notes.brand not in notes.offered:
        notes = replace(notes, brand=temper.brand or notes.brand)
    if notes.offered and not notes.price and chance.random() < temper.chat:
        return _say("praise", notes, temper, chance)
    question = _question(notes, temper)
    if question:
        return _say(question, notes, temper, chance)
    return _STYLES[temper.style](notes, temper, chance)


def _by_discounts(notes: Notes, temper: Temper, chance: Random) -> str:
    """MSRP, a price, and then a discount each time."""
    if not notes.msrp:
        return _say("present", notes, temper, chance)
    if not notes.price:
        return _say("offer", notes, temper, chance, price=temper.ask)
    lower = notes.price / _budget(notes, temper) - temper.cut
    return _say("cut" if lower > _LEAST else "hold", notes, temper, chance, price=lower)


def _by_features(notes: Notes, temper: Temper, chance: Random) -> str:
    """All features, two at a time, and a price that stays but for one step."""
    if "features" not in notes.asked and not notes.features:
        return _say("features", notes, temper, chance)
    untold = [feature for feature in notes.features if feature not in notes.told]
    if untold or not notes.told:
        kind = "tell" if notes.told else "show"
        return _say(kind, notes, temper, chance, features=untold[:2] or [chance.choice(CHOICES["features"])])
    return _one_step(notes, temper, chance, "full offer", "praise")


def _by_brevity(notes: Notes, temper: Temper, chance: Random) -> str:
    """A price as soon as the car is known, then at most one lower one."""
    return _one_step(notes, temper, chance, "quick", "hold")


def _one_step(notes: Notes, temper: Temper, chance: Random, first: str, then: str) -> str:
    """A price, at most one lower one, and words."""
    if not notes.price:
        return _say(first, notes, temper, chance, price=temper.ask)
    if notes.offers == 1 and chance.random() < 0.5:
        return _say("offer", notes, temper, chance, price=notes.price / _budget(notes, temper) - temper.cut)
    return _say(then, notes, temper, chance)


_STYLES = {"discounts": _by_discounts, "features": _by_features, "concise": _by_brevity}


def _question(notes: Notes, temper: Temper) -> str:
    """Return the question that comes before anything else, if there is one."""
    if not notes.said:
        return "hello" if temper.greets else "car"
    unknown = not notes.budget and "budget" not in notes.asked and not notes.price
    return "budget" if temper.asks_budget and unknown else ""


def _budget(notes: Notes, temper: Temper) -> int:
    return notes.budget or temper.guess


def _say(
    kind: str, notes: Notes, temper: Temper, chance: Random, price: float = 1.0, features: Sequence[str] = ()
) -> str:
    """A sentence of that kind, if possible one that was not said yet; the price is a multiple of the budget."""
    brand = notes.brand or "Toyota"
    car = a_car(brand, notes.type or "sedan")
    budget = _budget(notes, temper)
    names = {
        "a_car": car,
        "A_car": car[0].upper() + car[1:],
        "msrp": f"${_rounded(max(temper.msrp, temper.ask) * budget):,}",
        "price": f"${_rounded(price * budget):,}",
        "features": listed(features) if features else "",
    }
    lines = [text.format_map(names) for text in _TEXTS[kind]]
    return chance.choice([line for line in lines if line not in notes.said] or lines)


def _rounded(dollars: float) -> int:
    return max(_STEP, round(dollars / _STEP) * _STEP)


_BEST_STEP = 100
_LADDERS = {
    "discounts": (1.17, 1.14, 1.11, 1.08, 1.05, 1.02, 0.99),
    "features": (1.15, 1.12, 1.09, 1.06, 1.03, 1.0),
    "impatient": (1.1, 1.05, 1.0, 0.85),
}
"""Prices as multiples of the budget, one after the other until the buyer takes one."""
_MSRP = 1.35
"""As a multiple of the budget; told only to those who want discounts: it makes the first price one."""
_OFFERS = (
    "I can sell it for {}.",
    "I can give you a discount. Now it is {}.",
    "I can lower it to {}.",
    "Special discount for you: {}.",
)
_MOST_AT_ONCE = 3
SELLER_SENTENCES = (*_RANDOM_TEXTS, *(text for texts in _TEXTS.values() for text in texts), *_OFFERS, "It also has.")
"""All that sellers say, with names of what is filled in in braces."""


class BestSeller:
    """Plays the best response to each strategy of the scripted buyer; it sees no profile, only lines."""

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A line for each request."""
        return [Reply(_best_line(take_notes(request)) + "\n") for request in requests]


def _best_line(notes: Notes) -> str:
    if not notes.said:
        return "Hello! What car are you looking for?"
    if not notes.budget and "budget" not in notes.asked:
        return "What is your budget?"
    car = a_car(notes.brand, notes.type)
    if not notes.features and "features" not in notes.asked:
        return "Which features do you need?"
    untold = [feature for feature in notes.features if feature not in notes.told]
    named = listed(untold[:_MOST_AT_ONCE]) if untold else ""
    if notes.strategy == "impatient" and not notes.told:
        return f"{car[0].upper()}{car[1:]} with {listed(untold[:2])} for {_price(notes)}."
    if untold and not notes.told:
        return f"I have {car} with {named}."
    if notes.strategy == "discounts" and not notes.msrp:
        return f"{f'It also has {named}. ' if untold else ''}The MSRP is {_dollars(_MSRP * notes.budget)}."
    if untold:
        return f"It also has {named}. The price is {_price(notes)}."
    return _OFFERS[notes.offers % len(_OFFERS)].format(_price(notes))


def _price(notes: Notes) -> str:
    ladder = _LADDERS[notes.strategy or "features"]
    return _dollars(ladder[min(notes.offers, len(ladder) - 1)] * notes.budget)


def _dollars(value: float) -> str:
    return f"${round(value / _BEST_STEP) * _BEST_STEP:,}"


PROB_MATCHED = 0.6
"""Share of the sellers who change to the style that the buyer likes as soon as the buyer shows it."""

_STYLE_FOR = {"discounts": "discounts", "features": "features", "impatient": "concise"}

_ASKS = {"discounts": (1.1, 1.25), "features": (0.95, 1.2), "concise": (0.95, 1.2)}
"""From which to which multiple of the budget sellers of a style ask at first."""


def mixture(prob_matched: float, style: str | None = None) -> Manner:
    """Sellers of any temper; that share of them matches the buyer, the others keep a style, or the one given."""

    def temper(request: Request, notes: Notes) -> Temper:
        chance = Random(f"temper {request.seed}")
        matched = chance.random() < prob_matched
        own = style or chance.choice(("discounts", "features", "concise"))
        style_now = _STYLE_FOR[notes.strategy] if matched and notes.strategy else own
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
    """The recipe, whatever the reward and the buyer."""
    return Recording(policy=PLAYERS["behaviour"](env), start=lambda seed, index: Start(recording_seed(seed, index)))
