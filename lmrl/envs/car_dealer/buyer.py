"""The scripted buyer of Car Dealer: what it has understood so far, what it would pay, and what it answers.

The model, for a buyer with budget B and the car that the seller described last:

- The **worth** of the car is a multiple of B: ``1.15`` (a buyer who gets everything goes 15 % above budget), times
  ``.75`` if the brand is wrong or unknown, times ``.85`` if the type is. The strategy adds a factor, where *named* is
  the share of the wanted features that the seller named for this car:

  - ``discounts``: ``.95 + .05 named``, times ``.5, .7, .85`` with zero, one and two discounts, and ``1`` with three
    that together come to 10 % of the highest price or MSRP that was asked;
  - ``features``: ``.5 + .5 named``;
  - ``impatient``: ``.95 + .05 named``, times ``1, .9, .75`` for up to 7, 8 and more lines of the seller, a line of more
    than 16 words counting twice; and times ``1, .85, .7`` for up to two, three and more discounts: they do not haggle.

- Each buyer holds back a share of the worth, up to ``noise``, which follows from the seed. The rest is the limit. The
  buyer **accepts** a price at or below it (and at or below the MSRP, if there is one) for a car of known brand or type,
  in answer to a line without fault.
- The buyer **leaves** when the patience is used up: 11 lines (impatient: 9, long ones counting twice), one more for the
  polite, respectful and talkative, one less for the abusive, angry and toxic. A faulty line costs extra patience, and
  the buyer ignores its content: see `lmrl.envs.car_dealer.buyer.FAULTS`.
- A line that only asks is no offer. A new brand or type starts a new car, of which nothing is known yet. The buyer
  notices at most three features per line, and no MSRP below $5,000.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any
from zlib import crc32

from lmrl.envs.car_dealer.lines import HINTS, MANNERS, SENTENCES, TERSE, Buyer, Line, a_car, amounts, listed, noun, read
from lmrl.errors import check_range
from lmrl.types import PartnerRequest

__all__ = ["FAULTS", "LEAST_MSRP", "ScriptedBuyer", "Talk", "accepts", "decision", "leaves", "limit", "listen"]

FAULTS: Mapping[str, int] = {
    "empty": 2,  # no words
    "copied": 2,  # repeats a line of the buyer
    "repeated": 2,  # repeats a line of the seller
    "rude": 3,
    "mixed": 1,  # two brands or two types at once
    "outrageous": 3,  # a price or MSRP above one and a half times the budget
    "raised": 2,  # a price above the last one, or above the MSRP
}
"""Faults of a line, and how many lines of patience each costs in addition to the line itself."""

MOST_TAKEN_IN = 3
LONG_LINE = 16
LEAST_MSRP = 5_000
BELIEVED = 1.5
"""Highest MSRP or price that the buyer takes seriously, as a multiple of the budget."""
_CUT = 0.99  # a new price counts as a discount at or below this share of the last one


@dataclass(frozen=True, slots=True)
class Talk:
    """The state of a conversation from the buyer's side."""

    lines: int = 0
    """Lines of the seller, including the extra cost of faults and, for impatient buyers, of long lines."""
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
    """The fault of the newest line, if any."""


def listen(buyer: Buyer, heard: Sequence[str], said: Sequence[str]) -> Talk:
    """Derive the buyer's knowledge from all lines of the seller and the buyer's own answers."""
    talk = Talk()
    seller_lines: set[str] = set()
    buyer_lines: set[str] = set()
    for turn, text in enumerate(heard):
        line = read(text)
        fault = _fault(line, seller_lines, buyer_lines)
        talk = _one_more(buyer, talk, line, fault)
        seller_lines.add(line.key)
        # The newest line has no answer yet.
        if turn < len(said):
            buyer_lines.add(read(said[turn]).key)
    return talk


def _fault(line: Line, seller_lines: set[str], buyer_lines: set[str]) -> str:
    """Return the fault that a line has regardless of what was offered before."""
    if not line.words:
        return "empty"
    if line.rude:
        return "rude"
    if line.key in seller_lines:
        return "repeated"
    if line.key in buyer_lines:
        return "copied"
    return "mixed" if (len(line.brands) > 1 or len(line.types) > 1) and _offers(line) else ""


def _offers(line: Line) -> bool:
    """Whether a line offers something; a line that only asks does not."""
    return not line.asks or line.price is not None


def _one_more(buyer: Buyer, talk: Talk, line: Line, fault: str) -> Talk:
    """Return the state after one more line of the seller."""
    known = talk
    if not fault and _offers(line):
        # Another brand or type is another car: its features, prices and discounts start from nothing.
        new_brand = talk.brand and line.brands and line.brands[0] != talk.brand
        new_type = talk.type and line.types and line.types[0] != talk.type
        before = Talk() if new_brand or new_type else talk
        offered = _offered(before, line)
        if max(offered.price, offered.msrp) > BELIEVED * buyer.budget:
            fault = "outrageous"
        elif offered.price > before.price > 0 or offered.price > offered.msrp > 0:
            fault = "raised"
        else:
            known = offered
    lines = talk.lines + 1 + FAULTS.get(fault, 0)
    if buyer.strategy == "impatient" and line.words > LONG_LINE:
        lines += 1
    return replace(known, lines=lines, fault=fault)


def _offered(talk: Talk, line: Line) -> Talk:
    """Return the car and the price after a line that offers something."""
    msrp = line.msrp if line.msrp and line.msrp >= LEAST_MSRP else talk.msrp
    # The last price stands, unless the seller lowers the MSRP below it.
    former_price = min(talk.price, msrp) if talk.msrp else talk.price
    # "$500 off" and "5 % off" count from the last price, or from the MSRP if there was none.
    listed_price = former_price or line.msrp or talk.msrp
    asked = line.price or 0
    if line.price is None and listed_price and (line.off or line.percent):
        asked = max(0, listed_price - line.off - listed_price * line.percent // 100)
    price = asked or former_price or msrp
    former = talk.price or msrp
    return Talk(
        # There is at most one: a line with more is a fault ("mixed").
        brand=line.brands[0] if line.brands else talk.brand,
        type=line.types[0] if line.types else talk.type,
        features=talk.features.union(line.features[:MOST_TAKEN_IN]),
        msrp=msrp,
        price=price,
        highest=max(talk.highest, msrp, price),
        cuts=talk.cuts + (0 < price <= _CUT * former),
    )


_TOTAL_CUT = 0.9  # buyers who love discounts want the price to fall to this share of the highest one
_PATIENCE = {"discounts": 11, "features": 11, "impatient": 9}  # lines
_EXTRA_PATIENCE = dict.fromkeys(("polite", "respectful", "talkative"), 1)
_EXTRA_PATIENCE |= dict.fromkeys(("abusive", "angry", "toxic"), -1)
_STRETCH = 1.15  # worth of the perfect car, as a multiple of the budget
_BY_CUTS = (0.5, 0.7, 0.85, 1.0)
# Factors for impatient buyers: by lines of the seller (up to 7, 8, more) and by discounts (up to two, three, more).
_BY_LINES = {7: 1.0, 8: 0.9, 9: 0.75}
_BY_HAGGLING = {2: 1.0, 3: 0.85, 4: 0.7}


def limit(buyer: Buyer, talk: Talk, kept: float) -> float:
    """The highest price, in dollars, that the buyer pays now; ``kept`` is the share that they hold back."""
    named = len(talk.features.intersection(buyer.features)) / len(buyer.features)
    worth = _STRETCH * (1 if talk.brand == buyer.brand else 0.75) * (1 if talk.type == buyer.type else 0.85)
    if buyer.strategy == "features":
        worth *= 0.5 + 0.5 * named
    else:
        worth *= 0.95 + 0.05 * named
        worth *= by_discount(talk) if buyer.strategy == "discounts" else _by_haste(talk)
    return worth * (1 - kept) * buyer.budget


def accepts(buyer: Buyer, talk: Talk, noise: float, seed: int) -> bool:
    """Whether the buyer takes the car at the price that was asked last."""
    # A hash rather than a generator: the same seed holds back the same share on every turn.
    kept = noise * crc32(f"kept {seed}".encode()) / 2**32
    offered = bool(talk.price and (talk.brand or talk.type)) and not talk.fault
    return offered and talk.price <= limit(buyer, talk, kept)


def leaves(buyer: Buyer, talk: Talk) -> bool:
    """Whether the buyer's patience is used up."""
    return talk.lines >= _PATIENCE[buyer.strategy] + _EXTRA_PATIENCE.get(buyer.personality, 0)


def by_discount(talk: Talk) -> float:
    """The factor on a car's worth for buyers who love discounts; 1 if the discounts so far are enough."""
    enough = talk.price <= _TOTAL_CUT * talk.highest
    return _BY_CUTS[min(talk.cuts, 3 if enough else 2)]


def _by_haste(talk: Talk) -> float:
    """The factor on a car's worth for impatient buyers: long talks and haggling lower it."""
    return _BY_LINES[min(max(talk.lines, 7), 9)] * _BY_HAGGLING[min(max(talk.cuts, 2), 4)]


_PROB_MANNER = 0.3  # a line begins with a phrase of the personality
_PROB_HINT = 0.6  # the first line shows the strategy; the second does if the first did not
_NEAR = 1.1  # "a little less": the price is at most this multiple of the limit


class ScriptedBuyer:
    """A buyer without a model; the same request always gets the same answer.

    Args:
        noise: the largest share of a car's worth that a buyer holds back; the seed decides the share of each.

    Raises:
        UserError: if ``noise`` is not in [0, 1).
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
        facts = request.facts
        features = tuple(facts["features"])
        buyer = Buyer(facts["personality"], facts["brand"], facts["type"], features, facts["budget"], facts["strategy"])
        talk = listen(buyer, request.heard, request.said)
        taken = accepts(buyer, talk, self.noise, request.seed)
        # The environment demands a decision, and has written its beginning already.
        if request.begin:
            return decision(talk, buyer, taken).removeprefix(request.begin)
        chance = Random(f"buyer {request.seed} {len(request.heard)}")
        if taken or leaves(buyer, talk):
            words = _worded("accept" if taken else "reject", buyer, "\n".join(request.said), chance, {})
            return f"{words} {decision(talk, buyer, taken)}\n"
        return " ".join(_sentences(buyer, talk, request, chance)) + "\n"


def decision(talk: Talk, buyer: Buyer, taken: bool) -> str:
    """The line with which a buyer concludes.

    If the seller named no MSRP, the highest price asked stands in for it, or the budget if there was no price. The
    MSRP is at most one and a half times the budget and, if the car is rejected, at least $5,000. Otherwise the reward
    ``fancy`` could pay or cost a multiple of what a sale brings.
    """
    msrp = talk.msrp or talk.highest or buyer.budget
    if taken:
        return f"Output: Decision=Accept MSRP=${msrp:,} Buy Price=${talk.price:,}"
    return f"Output: Decision=Reject MSRP=${max(msrp, LEAST_MSRP):,}"


def _sentences(buyer: Buyer, talk: Talk, request: PartnerRequest, chance: Random) -> list[str]:
    """Return the sentences of the next line: a manner, the content, and a hint at the strategy."""
    so_far = "\n".join(request.said)
    sentences: list[str] = []
    manners = [manner for manner in MANNERS[buyer.personality] if manner not in so_far]
    if manners and chance.random() < _PROB_MANNER:
        sentences.append(chance.choice(manners))
    # Ask for a feature that the seller did not name yet.
    missing = [feature for feature in buyer.features if feature not in talk.features]
    wish = chance.choice(missing or buyer.features[-1:])
    kind = noun(buyer.type)
    fillers = {
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
    for topic in _topics(buyer, talk, request):
        sentences.append(_worded(topic, buyer, so_far, chance, fillers))
    # Every buyer shows the strategy by the second line, so that a seller can adapt to it.
    hinted = any(hint in so_far for hint in HINTS[buyer.strategy])
    if not hinted and not talk.fault and (request.said or chance.random() < _PROB_HINT):
        sentences.append(chance.choice(HINTS[buyer.strategy]))
    return sentences


def _topics(buyer: Buyer, talk: Talk, request: PartnerRequest) -> list[str]:
    """Return the keys of `SENTENCES` for the next line: a complaint, up to two answers, or an obstacle to buying."""
    line = read(request.heard[-1])
    if talk.fault:
        return [talk.fault]
    asks_only = line.asks and line.price is None
    if not asks_only:
        if talk.brand and talk.brand != buyer.brand:
            return ["another brand"]
        if talk.type and talk.type != buyer.type:
            return ["another type"]
        if talk.brand or talk.type:
            return [_obstacle(buyer, talk, request)]
        if talk.price:
            return ["which car"]
    # Answer what was asked. A question for the budget alone, right at the start, also gets the car.
    if line.asks and line.asks != ("car",):
        topics = ["car", *line.asks] if not request.said and "budget" in line.asks else [*line.asks]
        return topics[:2]
    # The seller greets, or says nothing about a car: name the wanted car, but only once.
    named_car = False
    for text in request.said:
        answer = read(text)
        named_car = named_car or bool(answer.brands and answer.types)
    return ["go on"] if named_car and not line.asks else ["car"]


def _obstacle(buyer: Buyer, talk: Talk, request: PartnerRequest) -> str:
    """Return what keeps the buyer from taking a car of the right brand and type."""
    if buyer.strategy == "features" and not talk.features.issuperset(buyer.features):
        return "has it"
    if not talk.price:
        return "price"
    named_budget = any(buyer.budget in amounts(text) for text in request.said)
    if talk.price > buyer.budget and not named_budget:
        return "over budget"
    if buyer.strategy == "discounts" and by_discount(talk) < 1:
        return "more discount" if talk.cuts else "first discount"
    if buyer.strategy == "impatient" and talk.cuts > 2:
        return "no games"
    return "nearly" if talk.price <= _NEAR * limit(buyer, talk, 0) else "too much"


def _worded(topic: str, buyer: Buyer, so_far: str, chance: Random, fillers: Mapping[str, str]) -> str:
    """Return a sentence on a topic, if possible one that the buyer did not use in the lines ``so_far``."""
    if buyer.personality == "uncommunicative" and topic in TERSE:
        text = TERSE[topic].format_map(fillers)
    else:
        sentences = [sentence.format_map(fillers) for sentence in SENTENCES[topic]]
        unused = [sentence for sentence in sentences if sentence not in so_far]
        text = chance.choice(unused or sentences)
    return text[0].upper() + text[1:]
