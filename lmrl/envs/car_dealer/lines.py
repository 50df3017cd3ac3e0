"""The lines of Car Dealer.

Buyer profiles, how cars, features and sums of money are read in a line, and the sentences of the scripted buyer.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
"""What each part of a profile may be. All but the strategy are those of LMRL-Gym's code; the strategies are the three
kinds of buyers of its appendix C: loves discounts, wants all features, is impatient."""

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
        """The profile as reset options and for a `lmrl.types.PartnerRequest`: plain values."""
        return {**{name: getattr(self, name) for name in CHOICES}, "features": list(self.features)}

    @property
    def prompt(self) -> str:
        """The line that describes the buyer to the original's language model (without a strategy)."""
        article = "an" if self.brand == "Audi" else "a"
        wish = f"{article} {self.brand} {self.type} with {', '.join(self.features)}"
        return f"Personality: {self.personality}. Prefers {wish}. Budget: ${self.budget:,}\n"


def draw_buyer(rng: np.random.Generator, fixed: Mapping[str, Any]) -> Buyer:
    """A profile of which each part is drawn uniformly, one to four features among them, except for what is fixed.

    Raises:
        UserError: for a fixed part that is none of `CHOICES`.
    """
    parts = {name: values[int(rng.integers(len(values)))] for name, values in CHOICES.items() if name != "features"}
    order = rng.permutation(len(CHOICES["features"]))[: int(rng.integers(1, _MOST_FEATURES + 1))]
    parts["features"] = tuple(CHOICES["features"][place] for place in order)
    for name, value in fixed.items():
        parts[name] = _features(value) if name == "features" else _one_of(name, value)
    return Buyer(**parts)


def _one_of(name: str, value: Any) -> Any:
    if value not in CHOICES[name] or isinstance(value, bool):
        raise UserError(f"{name} must be one of {', '.join(map(str, CHOICES[name]))}, got {value!r:.60}")
    return value


def _features(value: Any) -> tuple[str, ...]:
    chosen = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not 1 <= len(chosen) <= _MOST_FEATURES or len({*chosen}) < len(chosen):
        raise UserError(f"features must be a list of one to four different ones, got {value!r:.60}")
    return tuple(_one_of("features", feature) for feature in chosen)


_OTHER_NAMES = {
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
_NAMES = [name for part in ("brand", "type", "features") for name in CHOICES[part]]
_NAME = re.compile(
    "|".join(rf"(?P<n{i}>\b(?:{re.escape(n)}|{_OTHER_NAMES.get(n, '(?!)')})\b)" for i, n in enumerate(_NAMES)), re.I
)
_PART = {name: part for part in ("brand", "type", "features") for name in CHOICES[part]}
_NEGATED = re.compile(r"\b(?:no|not|without|isn't|doesn't)\b[^.,;:!?]*", re.I)

_NUMBER = r"(\d{1,3}(?:,\d{3})+|\d{1,9}(?:\.\d{1,2})?)"
_MONEY = re.compile(rf"\$ ?{_NUMBER}(?: ?(k|thousand|grand)\b)?|\b{_NUMBER}(?: ?(k|thousand|grand|dollars)\b)?", re.I)
_PERCENT = re.compile(r"\b(\d{1,2}) ?(?:%|percent\b)", re.I)
_LEAST_BARE = 5_000
"""A number without dollar sign, comma or unit is money from here on: 2023 is a year."""
_LEAST = 1_000
_MSRP = re.compile(r"(?:msrp|list price|sticker price)\W*(?:is|of|at|was)?\W*$", re.I)
_IDLE = re.compile(r"(?:budget\W*(?:is|of)?|instead of|down from|\bfrom|was|than)\W*$", re.I)
_OFF_BEFORE = re.compile(r"(?:discount of|save(?: you)?|rebate of)\W*$", re.I)
_OFF_AFTER = re.compile(r"[ -]*(?:off|less|discount|rebate)\b", re.I)
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
    """Its words in small letters, to tell whether two lines are the same; empty for one without words."""
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
    """Of a question: brand, type, features, budget, car."""
    rude: bool


@lru_cache(maxsize=1 << 15)
def read(text: str) -> Line:
    """Read a line. What follows "no", "not" or "without" up to the next comma or stop is not said."""
    words = _KEEP.findall(text.lower())
    named: dict[str, None] = {}
    for match in _NAME.finditer(_NEGATED.sub("", text)):
        named[_NAMES[int(str(match.lastgroup)[1:])]] = None
    msrp, price, off = _sums(text)
    percent = _PERCENT.search(text)
    asking = "?" in text and _ASKING.search(text)
    asks = [topic for topic, pattern in _TOPICS.items() if pattern.search(text)] if asking else []
    return Line(
        key=" ".join(words),
        words=len(text.split()) if words else 0,
        brands=_of("brand", named),
        types=_of("type", named),
        features=_of("features", named),
        msrp=msrp,
        price=price,
        off=off,
        percent=int(percent[1]) if percent else 0,
        asks=tuple(topic for topic in asks if topic != "car") or tuple(asks),
        rude=_RUDE.search(text) is not None,
    )


@lru_cache(maxsize=1 << 15)
def amounts(text: str) -> tuple[int, ...]:
    """All sums of money from $1,000, in dollars, whatever they are: ``$31,000``, ``31k``, ``31 thousand``."""
    return tuple(value for value in map(_value, _MONEY.finditer(text)) if value >= _LEAST)


def _of(part: str, named: dict[str, None]) -> tuple[str, ...]:
    return tuple(name for name in named if _PART[name] == part)


def _value(match: re.Match[str]) -> int:
    """Dollars; 0 for a bare number that is too small to be meant as money."""
    number = match[1] or match[3]
    unit = match[2] or match[4]
    value = int(float(number.replace(",", "")) * (1_000 if unit and unit.lower() != "dollars" else 1))
    bare = match[1] is None and not unit and "," not in number
    return 0 if bare and value < _LEAST_BARE else value


def _sums(text: str) -> tuple[int | None, int | None, int]:
    """MSRP, price and discount."""
    msrp = None
    price = None
    off = 0
    end = 0
    for match in _MONEY.finditer(text):
        before = text[end : match.start()]
        after = text[match.end() :]
        value = _value(match)
        end = match.end()
        if _OFF_BEFORE.search(before) or _OFF_AFTER.match(after):
            off = value
        elif value < _LEAST or _IDLE.search(before):
            continue
        elif _MSRP.search(before):
            msrp = value
        else:
            price = value
    return msrp, price, off


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
"""By what is said."""

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
"""What uncommunicative buyers say instead."""

HINTS: Mapping[str, tuple[str, ...]] = {
    "discounts": ("I love a good discount.", "Do you have any discounts?", "I never pay without a discount."),
    "features": ("The features matter most to me.", "I want to know all features.", "Features first, please."),
    "impatient": ("Make it quick.", "I am in a hurry.", "I have little time."),
}
"""By strategy."""

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
"""What a personality says before the rest now and then."""

_NOUNS = {"luxury": "luxury car", "electric": "electric car"}
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
