"""The recipe of the car dealer dataset: sellers of three styles, some of whom notice what kind of buyer they have.

Source: LMRL-Gym, appendix C.8: sellers who give discounts, talk about features, or are concise, against buyers who love
discounts, want all features, or are impatient; matched pairs sell well.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from lmrl.behaviours.car_best import BestSeller
from lmrl.behaviours.car_dealer import CarSeller, Manner, Temper
from lmrl.behaviours.car_notes import Notes
from lmrl.behaviours.car_random import RandomSeller
from lmrl.behaviours.recording import Recording, episode_seed
from lmrl.envs.car_buyers import CHOICES
from lmrl.protocols import Policy, Request
from lmrl.rollout import Start

__all__ = ["PLAYERS", "PROB_MATCHED", "recording"]

PROB_MATCHED = 0.6
"""Share of the sellers who change to the style that the buyer likes as soon as the buyer shows it."""

_STYLE_FOR = {"discounts": "discounts", "features": "features", "impatient": "concise"}

_ASKS = {"discounts": (1.1, 1.25), "features": (0.95, 1.2), "concise": (0.95, 1.2)}
"""From which to which multiple of the budget sellers of a style ask at first."""


def mixture(prob_matched: float, style: str | None = None) -> Manner:
    """Sellers of any temper; that share of them matches the buyer, the others keep a style, or the one given."""

    def temper(request: Request, notes: Notes) -> Temper:
        chance = Random(f"temper {request.seed}")
        matched = chance.random() < prob_matched
        own = style or chance.choice(("discounts", "features", "concise"))
        style_now = _STYLE_FOR[notes.strategy] if matched and notes.strategy else own
        return Temper(
            style=style_now,
            ask=chance.uniform(*_ASKS[style_now]),
            msrp=chance.uniform(1.15, 1.35),
            cut=chance.uniform(0.03, 0.08),
            guess=chance.choice(CHOICES["budget"]),
            chat=0.2 if style_now == "concise" else chance.choice((0.2, 0.4, 0.6)),
            greets=chance.random() < 0.7,
            asks_budget=chance.random() < 0.95,
            brand=chance.choice(CHOICES["brand"]) if chance.random() < 0.1 else "",
        )

    return temper


def _player(make: Callable[[], Policy]) -> Callable[[Mapping[str, Any]], Policy]:
    return lambda env: make()


PLAYERS = {
    "random": _player(RandomSeller),
    "behaviour": _player(lambda: CarSeller(mixture(PROB_MATCHED))),
    "optimal": _player(BestSeller),
    "matched": _player(lambda: CarSeller(mixture(1.0))),
    "discounts": _player(lambda: CarSeller(mixture(0.0, "discounts"))),
    "features": _player(lambda: CarSeller(mixture(0.0, "features"))),
    "concise": _player(lambda: CarSeller(mixture(0.0, "concise"))),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """The recipe, whatever the reward and the buyer."""
    return Recording(policy=PLAYERS["behaviour"](env), start=lambda seed, index: Start(episode_seed(seed, index)))
