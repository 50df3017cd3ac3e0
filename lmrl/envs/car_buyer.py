"""The scripted buyer: says what the utility model of `lmrl.envs.car_utility` feels, in words of its personality."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from lmrl.envs.car_buyers import CHOICES, Buyer
from lmrl.envs.car_lines import HINTS, MANNERS, SENTENCES, TERSE, a_car, listed, noun
from lmrl.envs.car_talk import LEAST_MSRP, Talk, listen
from lmrl.envs.car_utility import accepts, by_discount, leaves, limit
from lmrl.envs.car_words import Line, amounts, read
from lmrl.errors import check_range
from lmrl.protocols import PartnerRequest

__all__ = ["ScriptedBuyer", "decision"]

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
        """What each buyer says; a decision ends it."""
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

    Where no MSRP was told, the highest price that was asked stands for it, and the budget where nothing was asked. It
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
    """What there is to say: a complaint, answers, or what is in the way of buying."""
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
    if asked := [topic for topic in line.asks if topic != "car"]:
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
    """What sentences say of this buyer."""
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
