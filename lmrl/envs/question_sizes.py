"""Questions that compare: bigger than a person, fits in a backpack, weighs more than ten pounds, costs less than $5."""

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from lmrl.envs.object_properties import those_with
from lmrl.envs.objects import Thing, things

__all__ = ["compared"]

# What people compare with: how large it looks in cm, and what it weighs in kg.
_YARDSTICKS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "ant": (0.5, 0.0001), "coin": (2, 0.006), "penny": (2, 0.003), "thumb": (6, 0.05), "finger": (8, 0.05),
        "egg": (6, 0.06), "mouse": (7.5, 0.03), "fist": (10, 0.4), "palm": (10, 0.4), "hand": (18, 0.45),
        "book": (25, 0.6), "brick": (20, 2.5), "head": (24, 5), "shoebox": (36, 1), "breadbox": (40, 1),
        "purse": (30, 1), "bag": (45, 1), "backpack": (45, 1), "suitcase": (65, 4), "baby": (50, 4), "child": (110, 20),
        "kid": (110, 20), "person": (170, 70), "human": (170, 70), "man": (170, 70), "woman": (170, 70),
        "adult": (170, 70), "people": (170, 70), "you": (170, 70), "me": (170, 70), "door": (200, 30),
        "room": (500, 10_000), "house": (1_000, 100_000), "building": (3_000, 1_000_000), "box": (45, 1),
        "whale": (2_500, 100_000), "planet": (1e9, 1e24), "city": (2e6, 1e12), "basket": (45, 1),
        "loaf of bread": (30, 0.6), "bread": (30, 0.6), "toaster": (30, 1.5), "bowling ball": (22, 6),
        "bicycle": (170, 12), "football field": (10_000, 1e6),
    }
)  # fmt: skip
_NUMBERS = {word: n for n, word in enumerate("zero one two three four five six seven eight nine ten".split())} | {
    "a": 1, "an": 1, "twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "hundred": 100,
    "thousand": 1_000, "million": 1e6, "few": 3, "couple": 2, "half": 0.5,
}  # fmt: skip
_UNITS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "pound": ("weight", 0.4536), "lb": ("weight", 0.4536), "kilogram": ("weight", 1), "kilo": ("weight", 1),
        "kg": ("weight", 1), "gram": ("weight", 0.001), "ounce": ("weight", 0.0283), "ton": ("weight", 1_000),
        "inch": ("size", 2.54), "inche": ("size", 2.54), "foot": ("size", 30.48), "feet": ("size", 30.48),
        "meter": ("size", 100), "metre": ("size", 100), "yard": ("size", 91.4), "centimeter": ("size", 1),
        "cm": ("size", 1), "mile": ("size", 160_934), "dollar": ("price", 1), "buck": ("price", 1),
        "euro": ("price", 1), "cent": ("price", 0.01),
    }
)  # fmt: skip
_MORE = re.compile(
    r"\b(?:bigger|larger|greater|taller|longer|wider|heavier|higher|more|over|above|exceed|at least|"
    r"too (?:big|large) for)\b"
)
_LESS = re.compile(
    r"\b(?:smaller|shorter|lighter|tinier|littler|less|cheaper|under|below|fits?|contained|squeezed?|small enough)\b"
)
_SAME = re.compile(r"\b(?:as (?:big|large|tall|long|heavy|small) as|(?:the|same) size (?:of|as)|size of|sized like)\b")
_WEIGHT = re.compile(r"\b(?:weighs?|weight|heavier|lighter|heavy)\b")
_PRICE = re.compile(r"\b(?:costs?|price|priced|worth|expensive|cheaper|buy)\b")
_SPLIT = re.compile(
    r"\b(?:than|inside of|inside|into|in|for|as|size of|under|over|at least)\b(?! (?:more|less|under|over)\b)"
)
_EQUAL = 1.6


def compared(words: tuple[str, ...]) -> int | None:
    """The objects for which a comparison holds (bit ``i``: object ``i``); None if the question compares nothing known.

    Args:
        words: of the question, in small letters.
    """
    text = " ".join(words)
    same, more, less = (bool(rule.search(text)) for rule in (_SAME, _MORE, _LESS))
    if not (same or more or less) or not _SPLIT.search(text):
        return None
    found = _yardstick(text)
    if found is None:
        return None
    measure, value = found
    if same:
        return those_with(lambda thing: value / _EQUAL <= (_measured(thing, measure) or 0) <= value * _EQUAL)
    if more:
        return those_with(lambda thing: (_measured(thing, measure) or 0) > value)
    return those_with(lambda thing: (size := _measured(thing, measure)) is not None and size < value)


def _measured(thing: Thing, measure: str) -> float | None:
    value: float | None = getattr(thing, measure)
    return value


def _yardstick(text: str) -> tuple[str, float] | None:
    """What is measured, and the value to compare with."""
    rest = _SPLIT.split(text)[-1].split()
    for place, word in enumerate(rest):
        unit = _UNITS.get(word.rstrip("s") if word != "feet" else word)
        if unit:
            return unit[0], _number(rest[:place]) * unit[1]
    measure = "price" if _PRICE.search(text) else "weight" if _WEIGHT.search(text) else "size"
    if measure == "price" and rest and rest[-1].isdigit():  # $100
        return measure, float(rest[-1])
    value = _reference(tuple(word for word in rest if word not in _ARTICLES), measure)
    return None if value is None else (measure, value)


_ARTICLES = frozenset(
    "a an the my your our average human typical normal regular adult size sized one single usual".split()
)


def _number(words: list[str]) -> float:
    """``a few hundred`` is 300; no number is 1."""
    total = 1.0
    for word in words:
        total *= float(word) if word.isdigit() else _NUMBERS.get(word, 1)
    return total


def _reference(words: tuple[str, ...], measure: str) -> float | None:
    name = " ".join(words) or "human"
    singular = name.removesuffix("s")
    if measure != "price":
        for word in (name, singular):
            if word in _YARDSTICKS:
                return _YARDSTICKS[word][0 if measure == "size" else 1]
    thing = _by_name().get(name) or _by_name().get(singular)
    return None if thing is None else _measured(thing, measure)


@lru_cache(maxsize=1)
def _by_name() -> Mapping[str, Thing]:
    return {name.lower(): thing for thing in things() for name in (*thing.variants, *thing.also)}
