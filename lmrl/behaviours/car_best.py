"""The best-response seller of Car Dealer: finds out wish, budget and strategy, then sells at the best price."""

from collections.abc import Sequence

from lmrl.behaviours.car_notes import Notes, take_notes
from lmrl.envs.car_lines import a_car, listed
from lmrl.protocols import Reply, Request

__all__ = ["BestSeller"]

_STEP = 100
_LADDERS = {
    "discounts": (1.17, 1.14, 1.11, 1.08, 1.05, 1.02, 0.99),
    "features": (1.15, 1.12, 1.09, 1.06, 1.03, 1.0),
    "impatient": (1.1, 1.05, 1.0, 0.85),
}
"""Prices as multiples of the budget, one after the other until the buyer takes one."""
_MSRP = 1.35
"""As a multiple of the budget; told only to those who want discounts: it makes the first price one."""
_OFFERS = (
    "I can sell it for {}.",
    "I can give you a discount. Now it is {}.",
    "I can lower it to {}.",
    "Special discount for you: {}.",
)
_MOST_AT_ONCE = 3


class BestSeller:
    """Plays the best response to each strategy of the scripted buyer; it sees no profile, only lines."""

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A line for each request."""
        return [Reply(_line(take_notes(request)) + "\n") for request in requests]


def _line(notes: Notes) -> str:
    if not notes.said:
        return "Hello! What car are you looking for?"
    if not notes.budget and "budget" not in notes.asked:
        return "What is your budget?"
    car = a_car(notes.brand, notes.type)
    if not notes.features and "features" not in notes.asked:
        return "Which features do you need?"
    untold = [feature for feature in notes.features if feature not in notes.told]
    named = listed(untold[:_MOST_AT_ONCE]) if untold else ""
    if notes.strategy == "impatient" and not notes.told:
        return f"{car[0].upper()}{car[1:]} with {listed(untold[:2])} for {_price(notes)}."
    if untold and not notes.told:
        return f"I have {car} with {named}."
    if notes.strategy == "discounts" and not notes.msrp:
        return f"{f'It also has {named}. ' if untold else ''}The MSRP is {_dollars(_MSRP * notes.budget)}."
    if untold:
        return f"It also has {named}. The price is {_price(notes)}."
    return _OFFERS[notes.offers % len(_OFFERS)].format(_price(notes))


def _price(notes: Notes) -> str:
    ladder = _LADDERS[notes.strategy or "features"]
    return _dollars(ladder[min(notes.offers, len(ladder) - 1)] * notes.budget)


def _dollars(value: float) -> str:
    return f"${round(value / _STEP) * _STEP:,}"
