"""What a buyer has heard: the car and the price on the table, the patience that is used up, the fault of a line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lmrl.envs.car_buyers import Buyer
from lmrl.envs.car_words import Line, read

__all__ = ["FAULTS", "LEAST_MSRP", "Talk", "listen"]

FAULTS: Mapping[str, int] = {
    "empty": 2,  # no words
    "copied": 2,  # what the buyer said
    "repeated": 2,  # what the seller said
    "rude": 3,
    "mixed": 1,  # two brands or two types at once
    "outrageous": 3,  # a price or MSRP above one and a half times the budget
    "raised": 2,  # a price above the last one, or above the MSRP
}
"""Faults of a line, and how many lines of patience each costs beside its own."""

MOST_TAKEN_IN = 3
LONG_LINE = 16
LEAST_MSRP = 5_000
BELIEVED = 1.5
"""Highest MSRP or price, as a multiple of the budget, that the buyer listens to."""
_CUT = 0.99


@dataclass(frozen=True, slots=True)
class Talk:
    """What the buyer has heard."""

    lines: int = 0
    """Lines heard, with what faults and, for impatient buyers, long lines cost."""
    brand: str = ""
    type: str = ""
    features: frozenset[str] = frozenset()
    msrp: int = 0
    price: int = 0
    highest: int = 0
    """The highest price or MSRP asked for this car."""
    cuts: int = 0
    """How often the price went down, by at least 1 %."""
    fault: str = ""
    """Of the newest line."""


def listen(buyer: Buyer, heard: Sequence[str], said: Sequence[str]) -> Talk:
    """What the buyer makes of all lines of the seller, knowing their own answers."""
    talk = Talk()
    sellers: set[str] = set()
    buyers: set[str] = set()
    for place, text in enumerate(heard):
        line = read(text)
        fault = _fault(line, sellers, buyers)
        talk = _one_more(buyer, talk, line, fault)
        sellers.add(line.key)
        buyers.update(read(reply).key for reply in said[place : place + 1])
    return talk


def _fault(line: Line, sellers: set[str], buyers: set[str]) -> str:
    """What is wrong with the line whatever is on the table."""
    if not line.words:
        return "empty"
    if line.rude:
        return "rude"
    if line.key in sellers:
        return "repeated"
    if line.key in buyers:
        return "copied"
    return "mixed" if (len(line.brands) > 1 or len(line.types) > 1) and _offers(line) else ""


def _offers(line: Line) -> bool:
    """Whether a line puts something on the table; one that only asks does not."""
    return not line.asks or line.price is not None


def _one_more(buyer: Buyer, talk: Talk, line: Line, fault: str) -> Talk:
    before = Talk(talk.lines) if _another_car(talk, line) else talk
    changed = _offered(before, line) if _offers(line) and not fault else talk
    fault = fault or _price_fault(buyer, before, changed)
    lines = talk.lines + 1 + FAULTS.get(fault, 0) + (buyer.strategy == "impatient" and line.words > LONG_LINE)
    return replace(talk if fault else changed, lines=lines, fault=fault)


def _another_car(talk: Talk, line: Line) -> bool:
    brand_changes = talk.brand and line.brands and line.brands[0] != talk.brand
    return bool(brand_changes or (talk.type and line.types and line.types[0] != talk.type))


def _offered(talk: Talk, line: Line) -> Talk:
    """What is on the table after a line."""
    msrp = line.msrp if line.msrp and line.msrp >= LEAST_MSRP else talk.msrp
    price = _asked(talk, line) or talk.price or msrp
    former = talk.price or msrp
    return Talk(
        brand="".join(line.brands) or talk.brand,
        type="".join(line.types) or talk.type,
        features=talk.features | {*line.features[:MOST_TAKEN_IN]},
        msrp=msrp,
        price=price,
        highest=max(talk.highest, msrp, price),
        cuts=talk.cuts + (0 < price <= _CUT * former),
    )


def _asked(talk: Talk, line: Line) -> int:
    """The price that the line asks, 0 if it does not say."""
    former = talk.price or line.msrp or talk.msrp
    if line.price is None and former and (line.off or line.percent):
        return max(0, former - line.off - former * line.percent // 100)
    return line.price or 0


def _price_fault(buyer: Buyer, before: Talk, now: Talk) -> str:
    if max(now.price, now.msrp) > BELIEVED * buyer.budget:
        return "outrageous"
    raised = now.price > before.price > 0
    return "raised" if raised or (now.msrp and now.price > now.msrp) else ""
