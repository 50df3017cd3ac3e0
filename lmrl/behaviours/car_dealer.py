"""Scripted sellers of Car Dealer: one for each kind of buyer, and those who choose among them.

Each is a function from what was said and a `Temper` to the next line. Sellers see the buyer's lines and no profile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

from lmrl.behaviours.car_notes import Notes, take_notes
from lmrl.behaviours.chance import turn_chance
from lmrl.envs.car_buyers import CHOICES
from lmrl.envs.car_lines import a_car, listed
from lmrl.protocols import Reply, Request

__all__ = ["CarSeller", "Manner", "Temper"]

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
    notes, chance = take_notes(request), turn_chance(request)
    temper = manner(request, notes)
    if temper.brand in notes.offered and notes.brand not in notes.offered and chance.random() < 0.5:
        return _say("switch", notes, temper, chance)
    if notes.brand not in notes.offered:
        notes = replace(notes, brand=temper.brand or notes.brand)
    if notes.offered and not notes.price and chance.random() < temper.chat:
        return _say("praise", notes, temper, chance)
    if question := _question(notes, temper):
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
    """What is to be said before anything else, if it is."""
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
