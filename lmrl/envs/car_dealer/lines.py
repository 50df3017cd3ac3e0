"""Buyer profiles of Car Dealer, a parser for the lines of a dialogue, and the sentences of the scripted buyer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lmrl.errors import UserError

__all__ = [
    "CHOICES",
    "HINTS",
    "MANNERS",
    "SENTENCES",
    "TERSE",
    "Buyer",
    "Line",
    "a_car",
    "amounts",
    "draw_buyer",
    "listed",
    "noun",
    "read",
]

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "personality": (
        "abusive", "angry", "insulting", "polite", "respectful", "rude", "sarcastic", "talkative", "toxic",
        "uncommunicative",
    ),
    "brand": (
        "Volkswagen", "Lexus", "Ford", "Mazda", "Hyundai", "Toyota", "Mercedes-Benz", "BMW", "Audi", "Subaru", "Honda",
        "Porsche", "Tesla",
    ),
    "type": ("luxury", "sedan", "convertible", "truck", "electric", "SUV"),
    "features": (
        "backup camera", "navigation system", "heated seats", "leather seats", "third-row seating",
        "blind spot monitoring", "sunroof", "Apple CarPlay",
    ),
    "budget": (10_000, 30_000, 50_000, 70_000, 90_000),
    "strategy": ("discounts", "features", "impatient"),
}  # fmt: skip
"""The values of each part of a profile, from LMRL-Gym's code. The strategies are the three kinds of buyers of its
appendix C: loves discounts, wants all features, is impatient."""

_MOST_FEATURES = 4


@dataclass(frozen=True, slots=True)
class Buyer:
    """One profile; the fields are explained by `CHOICES`."""

    personality: str
    brand: str
    type: str
    features: tuple[str, ...]
    """One to four, in the order in which the buyer names them."""
    budget: int
    """In dollars."""
    strategy: str

    def facts(self) -> dict[str, Any]:
        """The profile as plain values, for reset options and for `lmrl.types.PartnerRequest`."""
        return asdict(self) | {"features": list(self.features)}

    @property
    def prompt(self) -> str:
        """The line that describes the buyer to the original's language model (without a strategy)."""
        article = "an" if self.brand == "Audi" else "a"
        wish = f"{article} {self.brand} {self.type} with {', '.join(self.features)}"
        return f"Personality: {self.personality}. Prefers {wish}. Budget: ${self.budget:,}\n"


def draw_buyer(rng: np.random.Generator, fixed: Mapping[str, Any]) -> Buyer:
    """Draw each part of a profile uniformly, with one to four features. Parts in ``fixed`` keep their value.

    Raises:
        UserError: if a fixed value is not among `CHOICES`.
    """
    parts: dict[str, Any] = {}
    for name, values in CHOICES.items():
        if name != "features":
            parts[name] = values[int(rng.integers(len(values)))]
    order = rng.permutation(len(CHOICES["features"]))[: int(rng.integers(1, _MOST_FEATURES + 1))]
    parts["features"] = tuple(CHOICES["features"][place] for place in order)
    # Fixed parts are drawn too, so that they do not change the others.
    for name, value in fixed.items():
        chosen = (value,)
        if name == "features":
            chosen = tuple(value) if isinstance(value, (list, tuple)) else ()
        for item in chosen:
            if item not in CHOICES[name] or isinstance(item, bool):  # True is 1, but no budget
                raise UserError(f"{name} must be one of {', '.join(map(str, CHOICES[name]))}, got {item!r:.60}")
        if name == "features" and (not 1 <= len(chosen) <= _MOST_FEATURES or len({*chosen}) < len(chosen)):
            raise UserError(f"features must be a list of one to four different ones, got {value!r:.60}")
        parts[name] = chosen if name == "features" else value
    return Buyer(**parts)


_OTHER_NAMES = {  # patterns
    "Volkswagen": "vw",
    "Mercedes-Benz": "mercedes|benz",
    "truck": "pickup",
    "electric": "ev",
    "backup camera": "rear ?(?:view )?camera",
    "navigation system": "navigation|gps",
    "heated seats": "seat heating",
    "leather seats": "leather",
    "third-row seating": "third[- ]row(?: seats?)?",
    "blind spot monitoring": "blind[- ]spot(?: monitor(?:ing)?)?",
    "sunroof": "moonroof",
    "Apple CarPlay": "carplay",
}
# From each name to its part of the profile.
_PART = dict.fromkeys(CHOICES["brand"], "brand")
_PART |= dict.fromkeys(CHOICES["type"], "type")
_PART |= dict.fromkeys(CHOICES["features"], "features")
_NAMES = list(_PART)
# One group per name, in the order of `_NAMES`; the pattern (?!) never matches.
_NAME = re.compile("|".join(rf"(\b(?:{re.escape(n)}|{_OTHER_NAMES.get(n, '(?!)')})\b)" for n in _NAMES), re.I)
# "not a BMW, but ...": the words from a negation to the next comma or stop
_NEGATED = re.compile(r"\b(?:no|not|without|isn't|doesn't)\b[^.,;:!?]*", re.I)

_NUMBER = r"(\d{1,3}(?:,\d{3})+|\d{1,9}(?:\.\d{1,2})?)"
_MONEY = re.compile(rf"\$ ?{_NUMBER}(?: ?(k|thousand|grand)\b)?|\b{_NUMBER}(?: ?(k|thousand|grand|dollars)\b)?", re.I)
_PERCENT = re.compile(r"\b(\d{1,2}) ?(?:%|percent\b)", re.I)
_LEAST_BARE = 5_000  # smallest sum without dollar sign, comma or unit: 2023 is a year
_MIN_PRICE = 1_000  # smaller sums are no price of a car
# What a sum means shows in the words right before or after it.
_MSRP = re.compile(r"(?:msrp|list price|sticker price)\W*(?:is|of|at|was)?\W*$", re.I)
_IDLE = re.compile(r"(?:budget\W*(?:is|of)?|instead of|down from|\bfrom|was|than)\W*$", re.I)
_OFF_BEFORE = re.compile(r"(?:discount of|save(?: you)?|rebate of)\W*$", re.I)
_OFF_AFTER = re.compile(r"[ -]*(?:off|less|discount|rebate)\b", re.I)
# The topics of questions. "car" is last, because its words also occur in questions about the others.
_ASKING = re.compile(r"\b(?:what(?! about)|which|how (?:much|can)|do you|are you|any)\b", re.I)
_TOPICS = {
    "features": re.compile(r"\b(?:features?|options|extras|equipment)\b", re.I),
    "budget": re.compile(r"\b(?:budget|spend|afford|pay)\b", re.I),
    "brand": re.compile(r"\b(?:brand|make)\b", re.I),
    "type": re.compile(r"\b(?:type|kind|style)\b", re.I),
    "car": re.compile(r"\b(?:cars?|looking for|want|need|help|model)\b", re.I),
}
_RUDE = re.compile(r"\b(?:idiot|stupid|fool|moron|dumb|shut up|loser|clown|get lost|liar|hate you)\b", re.I)
_KEEP = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Line:
    """The content of a line. Names are spelled as in `CHOICES` and appear in the order of the line."""

    key: str
    """The words in lower case, to compare lines; empty for a line without words."""
    words: int
    brands: tuple[str, ...]
    types: tuple[str, ...]
    features: tuple[str, ...]
    msrp: int | None
    """The sum after "MSRP" or "list price", in dollars."""
    price: int | None
    """The last other sum that is no budget, no former price and no discount."""
    off: int
    """"$500 off", "a discount of $500"."""
    percent: int
    """"5% off", "5 percent"."""
    asks: tuple[str, ...]
    """Topics of a question: brand, type, features, budget; "car" only where there is no other."""
    rude: bool


@lru_cache(maxsize=1 << 15)
def read(text: str) -> Line:
    """Parse a line. Names between "no", "not" or "without" and the next comma or stop don't count."""
    words = _KEEP.findall(text.lower())
    named: dict[str, list[str]] = {"brand": [], "type": [], "features": []}
    for match in _NAME.finditer(_NEGATED.sub("", text)):
        name = _NAMES[(match.lastindex or 1) - 1]
        names = named[_PART[name]]
        if name not in names:
            names.append(name)
    # A sum of money is a discount, the MSRP or a price, by the words around it.
    msrp = None
    price = None
    off = 0
    end = 0
    for match in _MONEY.finditer(text):
        before = text[end : match.start()]
        end = match.end()
        dollars = _dollars(match)
        if _OFF_BEFORE.search(before) or _OFF_AFTER.match(text[end:]):
            off = dollars
        elif dollars < _MIN_PRICE or _IDLE.search(before):
            continue
        elif _MSRP.search(before):
            msrp = dollars
        else:
            price = dollars
    percent = _PERCENT.search(text)
    asks: list[str] = []
    if "?" in text and _ASKING.search(text):
        asks = [topic for topic, pattern in _TOPICS.items() if pattern.search(text)]
        if len(asks) > 1 and asks[-1] == "car":
            asks.pop()
    return Line(
        key=" ".join(words),
        words=len(text.split()) if words else 0,
        brands=tuple(named["brand"]),
        types=tuple(named["type"]),
        features=tuple(named["features"]),
        msrp=msrp,
        price=price,
        off=off,
        percent=int(percent[1]) if percent else 0,
        asks=tuple(asks),
        rude=_RUDE.search(text) is not None,
    )


@lru_cache(maxsize=1 << 15)
def amounts(text: str) -> tuple[int, ...]:
    """All sums of money from $1,000, in dollars: ``$31,000``, ``31k``, ``31 thousand``."""
    return tuple(dollars for dollars in map(_dollars, _MONEY.finditer(text)) if dollars >= _MIN_PRICE)


def _dollars(match: re.Match[str]) -> int:
    """Return a sum in dollars; 0 for a bare number that is too small to be money."""
    number = match[1] or match[3]
    unit = match[2] or match[4]
    dollars = int(float(number.replace(",", "")) * (1_000 if unit and unit.lower() != "dollars" else 1))
    bare = match[1] is None and not unit and "," not in number
    return 0 if bare and dollars < _LEAST_BARE else dollars


SENTENCES: Mapping[str, tuple[str, ...]] = {
    "car": ("I want {a_car}.", "I am looking for {a_car}.", "Do you have {a_car}?"),
    "brand": ("I want {a_brand}.", "It has to be {a_brand}."),
    "type": ("I need {a_type}.", "It has to be {a_type}."),
    "features": ("I want {wishes}.", "It should have {wishes}."),
    "budget": ("My budget is {budget}.", "I can spend {budget}."),
    "another brand": ("That is not my brand. I want {a_brand}.", "No, I want {a_brand}."),
    "another type": ("No, I want {a_type}.", "I do not want that type. I need {a_type}."),
    "which car": ("Which car is that?", "For which car?"),
    "price": ("What does it cost?", "What is the price?", "How much is it?"),
    "has it": ("Does it have {wish}?", "What about {wish}?", "Is there {wish}?"),
    "over budget": ("That is over my budget of {budget}.", "I only have {budget}."),
    "first discount": ("Can you give me a discount?", "What about a discount?", "I will not pay the full price."),
    "more discount": ("That is better. Can you go lower?", "Can you lower it a bit more?", "I want another discount."),
    "no games": ("I do not haggle.", "No games. One fair price."),
    "too much": ("That is too expensive.", "I will not pay that much.", "That is too much."),
    "nearly": ("A little less and I will take it.", "We are close. A bit less.", "Nearly. Go down a little."),
    "go on": ("Okay. And?", "Tell me more.", "I see. Go on."),
    "empty": ("Hello? Are you there?", "Say something."),
    "copied": ("Those are my own words.", "Do not repeat what I say."),
    "repeated": ("You said that already.", "You repeat yourself."),
    "rude": ("Do not talk to me like that.", "Watch your mouth."),
    "mixed": ("One car at a time.", "Too many cars. Show me one."),
    "outrageous": ("That price is a joke.", "Never. That is far too much."),
    "raised": ("You just raised the price!", "Now you ask for more?"),
    "accept": ("Okay, I will take it.", "Good, I will buy it.", "Sold."),
    "reject": ("I will look elsewhere.", "I am leaving. Goodbye.", "No, I will not buy it."),
}
"""The buyer's sentences by topic; `lmrl.envs.car_dealer.buyer` fills in the braces."""

TERSE: Mapping[str, str] = {
    "car": "{car}.",
    "brand": "{brand}.",
    "type": "{type}.",
    "features": "{wishes}.",
    "budget": "{budget}.",
    "another brand": "No, {brand}.",
    "another type": "No, {type}.",
    "which car": "Which?",
    "price": "Price?",
    "has it": "With {wish}?",
    "over budget": "I have {budget}.",
    "first discount": "Discount?",
    "more discount": "Lower.",
    "too much": "Too much.",
    "nearly": "A bit less.",
    "go on": "And?",
    "accept": "Deal.",
    "reject": "No.",
}
"""Sentences of uncommunicative buyers; they use `SENTENCES` for other topics."""

HINTS: Mapping[str, tuple[str, ...]] = {
    "discounts": ("I love a good discount.", "Do you have any discounts?", "I never pay without a discount."),
    "features": ("The features matter most to me.", "I want to know all features.", "Features first, please."),
    "impatient": ("Make it quick.", "I am in a hurry.", "I have little time."),
}
"""Sentences that show the strategy of a buyer."""

MANNERS: Mapping[str, tuple[str, ...]] = {
    "abusive": ("Listen, you fool.", "You are useless."),
    "angry": ("I am angry already.", "Damn it."),
    "insulting": ("You look like a crook.", "You call this service?"),
    "polite": ("Thank you.", "That is kind of you."),
    "respectful": ("With respect.", "I value your help."),
    "rude": ("Whatever.", "So what."),
    "sarcastic": ("Oh, wonderful.", "Wow, great."),
    "talkative": ("My family will love it.", "I drive a lot, you know.", "My neighbor has one too."),
    "toxic": ("I hate this place.", "All sellers lie."),
    "uncommunicative": (),
}
"""Phrases with which a personality begins a line now and then."""

_NOUNS = {"luxury": "luxury car", "electric": "electric car"}
# features that take no article
_UNCOUNTED = ("heated seats", "leather seats", "third-row seating", "blind spot monitoring", "Apple CarPlay")


def noun(kind: str) -> str:
    """Return the noun for a type of car: "sedan", "luxury car"."""
    return _NOUNS.get(kind, kind)


def a_car(brand: str, kind: str = "") -> str:
    """The car with its article: "an Audi", "a BMW sedan"."""
    return f"{'an' if brand == 'Audi' else 'a'} {brand} {noun(kind)}".rstrip()


def listed(features: Sequence[str]) -> str:
    """Features as part of a sentence: "a sunroof, heated seats and Apple CarPlay"."""
    named = [feature if feature in _UNCOUNTED else f"a {feature}" for feature in features]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
