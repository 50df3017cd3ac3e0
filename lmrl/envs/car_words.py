"""How a line of the car dealer is read: cars, features, sums of money, questions. The buyer and the sellers use it."""

import re
from dataclasses import dataclass
from functools import lru_cache

from lmrl.envs.car_buyers import CHOICES

__all__ = ["Line", "amounts", "read"]

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
    """What a line says. Names are spelled as in `lmrl.envs.car_buyers.CHOICES` and stand in the order of the line."""

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
    number, unit = match[1] or match[3], match[2] or match[4]
    value = int(float(number.replace(",", "")) * (1_000 if unit and unit.lower() != "dollars" else 1))
    bare = match[1] is None and not unit and "," not in number
    return 0 if bare and value < _LEAST_BARE else value


def _sums(text: str) -> tuple[int | None, int | None, int]:
    """MSRP, price and discount."""
    msrp, price, off, end = None, None, 0, 0
    for match in _MONEY.finditer(text):
        before, after, value = text[end : match.start()], text[match.end() :], _value(match)
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
