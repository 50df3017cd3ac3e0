"""What a seller remembers of a conversation. It follows from the lines alone: the profile is hidden from sellers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lmrl.envs.car_buyers import CHOICES
from lmrl.envs.car_lines import HINTS
from lmrl.envs.car_words import Line, amounts, read
from lmrl.protocols import Request

__all__ = ["Notes", "take_notes"]

_SIGNS: Mapping[str, re.Pattern[str]] = {
    "discounts": re.compile(r"discount|\blower\b|full price", re.I),
    "features": re.compile(r"\bfeatures\b|does it have|is there|what about (?!a discount)|\bwith\b.*\?", re.I),
    "impatient": re.compile(r"quick|hurry|little time", re.I),
}
"""By which words a buyer shows the strategy; `HINTS` all hold one."""
assert all(_SIGNS[strategy].search(hint) for strategy, hints in HINTS.items() for hint in hints)


@dataclass(frozen=True, slots=True)
class Notes:
    """Of the buyer what they said, of the seller what was done."""

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
        strategy=next((found for text in request.observations[1:] if (found := _sign(text))), ""),
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
    place, brand = 0, ""
    for number, line in enumerate(lines):
        if line.brands and brand not in ("", line.brands[-1]):
            place = number
        brand = line.brands[-1] if line.brands else brand
    return place


def _sign(text: str) -> str:
    return next((strategy for strategy, pattern in _SIGNS.items() if pattern.search(text)), "")
