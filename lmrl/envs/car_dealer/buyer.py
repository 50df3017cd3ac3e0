"""The scripted buyer: what it has heard, how much it likes what is on the table, and what it says.

The model, for a buyer with budget B who is to pay the price P for the car that was described last:

- **worth** is a multiple of B: ``1.15``, a buyer who gets all they want goes 15 % above budget; times ``.75`` if
  the brand is another or unknown, times ``.85`` if the type is, times what the strategy makes of the rest, where *told*
  is the share of the wanted features that the seller named for this car:

  - ``discounts``: ``.95 + .05 told``, times ``.5, .7, .85`` with none, one and two discounts, and ``1`` with three that
    together come to 10 % of the highest price or MSRP that was asked;
  - ``features``: ``.5 + .5 told``;
  - ``impatient``: ``.95 + .05 told``, times ``1, .9, .75`` for up to 7, 8 and more lines heard, a line of more
    than 16 words counting twice; and times ``1, .85, .7`` for up to two, three and more discounts: they do not haggle.

- Each buyer keeps back a share of the worth that follows from the seed, up to ``noise``. What is left is the limit.
  They **accept** a price at or below it (and at or below the MSRP, if they know one) for a car whose brand or type
  they know, in answer to a line without fault.
- They **leave** when their patience is used up: 11 lines (impatient: 9, long ones counting twice), one more for the
  polite, respectful and talkative, one less for the abusive, angry and toxic. Faults cost lines on top, and nothing of
  such a line is taken in: see `lmrl.envs.car_dealer.buyer.FAULTS`.
- A line that only asks is no offer. A new brand or type is another car, of which nothing is known yet. At most three
  features of a line are taken in. Sums below $5,000 are no MSRP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from zlib import crc32

from lmrl.envs.car_dealer.lines import (
    CHOICES,
    HINTS,
    MANNERS,
    SENTENCES,
    TERSE,
    Buyer,
    Line,
    a_car,
    amounts,
    listed,
    noun,
    read,
)
from lmrl.errors import check_range
from lmrl.types import PartnerRequest

__all__ = [
    "FAULTS",
    "LEAST_MSRP",
    "ScriptedBuyer",
    "Talk",
    "accepts",
    "by_discount",
    "decision",
    "leaves",
    "limit",
    "listen",
]

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
    """The state of a conversation, as the buyer has heard it."""

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
    """Derive the buyer's knowledge from all lines of the seller and the buyer's own answers."""
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


_TOTAL_CUT = 0.9
_PATIENCE = {"discounts": 11, "features": 11, "impatient": 9}
_MORE = dict.fromkeys(("polite", "respectful", "talkative"), 1) | dict.fromkeys(("abusive", "angry", "toxic"), -1)
_STRETCH = 1.15
_BY_CUTS = (0.5, 0.7, 0.85, 1.0)


def limit(buyer: Buyer, talk: Talk, kept: float) -> float:
    """The highest price, in dollars, that the buyer pays now; ``kept`` is the share that they keep back."""
    told = len(talk.features & {*buyer.features}) / len(buyer.features)
    worth = _STRETCH * (1 if talk.brand == buyer.brand else 0.75) * (1 if talk.type == buyer.type else 0.85)
    if buyer.strategy == "features":
        worth *= 0.5 + 0.5 * told
    else:
        worth *= 0.95 + 0.05 * told
        worth *= by_discount(talk) if buyer.strategy == "discounts" else _by_haste(talk)
    return worth * (1 - kept) * buyer.budget


def accepts(buyer: Buyer, talk: Talk, noise: float, seed: int) -> bool:
    """Whether the buyer takes the car for the price on the table."""
    kept = noise * crc32(f"kept {seed}".encode()) / 2**32
    offered = bool(talk.price and (talk.brand or talk.type)) and not talk.fault
    return offered and talk.price <= limit(buyer, talk, kept)


def leaves(buyer: Buyer, talk: Talk) -> bool:
    """Whether the buyer has had enough."""
    return talk.lines >= _PATIENCE[buyer.strategy] + _MORE.get(buyer.personality, 0)


def by_discount(talk: Talk) -> float:
    """By what the discounts so far multiply the worth of a car for those who love them; 1 if they are enough."""
    enough = talk.price <= _TOTAL_CUT * talk.highest
    return _BY_CUTS[min(talk.cuts, 3 if enough else 2)]


def _by_haste(talk: Talk) -> float:
    late = 1.0 if talk.lines <= 7 else 0.9 if talk.lines == 8 else 0.75
    return late * (1.0 if talk.cuts <= 2 else 0.85 if talk.cuts == 3 else 0.7)


_MANNER = 0.3
"""How often a line begins with the personality's own words."""
_HINT = 0.6
"""How often the first line says how the buyer is won over; the second does if the first did not."""
_NEAR = 1.1


class ScriptedBuyer:
    """A buyer without weights: the same words for the same request.

    Args:
        noise: the largest share of the worth of a car that a buyer keeps back; each has their own, by the seed.

    Raises:
        UserError: for a ``noise`` that is no share.
    """

    def __init__(self, noise: float = 0.1) -> None:
        check_range("[0, 1)", noise=noise)
        self.noise = float(noise)

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """Return the buyer's next line. A decision ends the conversation."""
        return [self._reply(request) for request in requests]

    def describe(self) -> dict[str, Any]:
        """Name, version and noise."""
        return {"name": "scripted buyer", "version": 1, "noise": self.noise}

    def _reply(self, request: PartnerRequest) -> str:
        buyer = Buyer(**{**{name: request.facts[name] for name in CHOICES}, "features": (*request.facts["features"],)})
        talk = listen(buyer, request.heard, request.said)
        taken = accepts(buyer, talk, self.noise, request.seed)
        if request.begin:
            return decision(talk, buyer, taken).removeprefix(request.begin)
        chance = Random(f"buyer {request.seed} {len(request.heard)}")
        if taken or leaves(buyer, talk):
            words = _worded("accept" if taken else "reject", buyer, request.said, chance, {})
            return f"{words} {decision(talk, buyer, taken)}\n"
        return " ".join(_sentences(buyer, talk, request, chance)) + "\n"


def decision(talk: Talk, buyer: Buyer, taken: bool) -> str:
    """The line by which a buyer concludes.

    If no MSRP was named, the highest price that was asked stands for it, and the budget if no price was asked. It
    is never above one and a half times the budget, nor, if the car is rejected, below $5,000: in the reward ``fancy``
    the one would pay, the other cost a multiple of what a sale brings.
    """
    msrp = talk.msrp or talk.highest or buyer.budget
    if taken:
        return f"Output: Decision=Accept MSRP=${msrp:,} Buy Price=${talk.price:,}"
    return f"Output: Decision=Reject MSRP=${max(msrp, LEAST_MSRP):,}"


def _sentences(buyer: Buyer, talk: Talk, request: PartnerRequest, chance: Random) -> list[str]:
    """A manner, what there is to say, and a hint."""
    known = [read(text) for text in request.said]
    line = read(request.heard[-1])
    manners = [words for words in MANNERS[buyer.personality] if not any(words in text for text in request.said)]
    said = [chance.choice(manners)] if manners and chance.random() < _MANNER else []
    missing = [name for name in buyer.features if name not in talk.features] or [buyer.features[-1]]
    names = _names(buyer, chance.choice(missing))
    said += [_worded(kind, buyer, request.said, chance, names) for kind in _kinds(buyer, talk, line, request, known)]
    hinted = any(hint in text for text in request.said for hint in HINTS[buyer.strategy])
    if not hinted and not talk.fault and (request.said or chance.random() < _HINT):
        said.append(chance.choice(HINTS[buyer.strategy]))
    return said


def _kinds(buyer: Buyer, talk: Talk, line: Line, request: PartnerRequest, known: Sequence[Line]) -> list[str]:
    """Return the kinds of the next line: a complaint, answers, or an obstacle to buying."""
    if talk.fault:
        return [talk.fault]
    if line.asks and line.price is None:
        return _answers(line, known)
    if talk.brand and talk.brand != buyer.brand:
        return ["another brand"]
    if talk.type and talk.type != buyer.type:
        return ["another type"]
    if not (talk.brand or talk.type):
        return ["which car"] if talk.price else _answers(line, known)
    return [_obstacle(buyer, talk, request)]


def _answers(line: Line, known: Sequence[Line]) -> list[str]:
    """Up to two of what was asked for; to a greeting the car, or what was not said yet."""
    asked = [topic for topic in line.asks if topic != "car"]
    if asked:
        return ["car", *asked][:2] if not known and "budget" in asked else asked[:2]
    return ["go on"] if any(said.brands and said.types for said in known) and not line.asks else ["car"]


def _obstacle(buyer: Buyer, talk: Talk, request: PartnerRequest) -> str:
    lacking = {*buyer.features} - talk.features
    if buyer.strategy == "features" and lacking:
        return "has it"
    if not talk.price:
        return "price"
    told = any(buyer.budget in amounts(text) for text in request.said)
    if talk.price > buyer.budget and not told:
        return "over budget"
    if buyer.strategy == "discounts" and by_discount(talk) < 1:
        return "more discount" if talk.cuts else "first discount"
    if buyer.strategy == "impatient" and talk.cuts > 2:
        return "no games"
    return "nearly" if talk.price <= _NEAR * limit(buyer, talk, 0) else "too much"


def _worded(kind: str, buyer: Buyer, said: Sequence[str], chance: Random, names: Mapping[str, str]) -> str:
    """A sentence of that kind, if possible one that was not said yet."""
    if buyer.personality == "uncommunicative" and kind in TERSE:
        text = TERSE[kind].format_map(names)
    else:
        every = [sentence.format_map(names) for sentence in SENTENCES[kind]]
        text = chance.choice([one for one in every if not any(one in line for line in said)] or every)
    return text[0].upper() + text[1:]


def _names(buyer: Buyer, wish: str) -> dict[str, str]:
    """Return the names that fill the sentences of this buyer."""
    kind = noun(buyer.type)
    return {
        "car": f"{buyer.brand} {kind}",
        "a_car": a_car(buyer.brand, buyer.type),
        "brand": buyer.brand,
        "a_brand": a_car(buyer.brand),
        "type": kind,
        "a_type": f"{'an' if buyer.type in ('electric', 'SUV') else 'a'} {kind}",
        "wish": listed([wish]),
        "wishes": listed(buyer.features),
        "budget": f"${buyer.budget:,}",
    }
