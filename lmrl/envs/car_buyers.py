"""Who comes to buy a car: a personality, a wish, a budget, and how to win them over."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lmrl.errors import UserError

__all__ = ["CHOICES", "Buyer", "draw_buyer"]

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "personality": (
        "abusive", "angry", "insulting", "polite", "respectful", "rude", "sarcastic", "talkative", "toxic",
        "uncommunicative",
    ),
    "brand": (
        "Volkswagen", "Lexus", "Ford", "Mazda", "Hyundai", "Toyota", "Mercedes-Benz", "BMW", "Audi", "Subaru", "Honda",
        "Porsche", "Tesla",
    ),
    "type": ("luxury", "sedan", "convertible", "truck", "electric", "SUV"),
    "features": (
        "backup camera", "navigation system", "heated seats", "leather seats", "third-row seating",
        "blind spot monitoring", "sunroof", "Apple CarPlay",
    ),
    "budget": (10_000, 30_000, 50_000, 70_000, 90_000),
    "strategy": ("discounts", "features", "impatient"),
}  # fmt: skip
"""What each part of a profile may be. All but the strategy are those of LMRL-Gym's code; the strategies are the three
kinds of buyers of its appendix C: loves discounts, wants all features, is impatient."""

_MOST_FEATURES = 4


@dataclass(frozen=True, slots=True)
class Buyer:
    """One profile; the fields are explained by `CHOICES`."""

    personality: str
    brand: str
    type: str
    features: tuple[str, ...]
    """One to four, in the order in which the buyer names them."""
    budget: int
    """In dollars."""
    strategy: str

    def facts(self) -> dict[str, Any]:
        """The profile as reset options and for a `lmrl.protocols.PartnerRequest`: plain values."""
        return {**{name: getattr(self, name) for name in CHOICES}, "features": list(self.features)}

    @property
    def prompt(self) -> str:
        """The line by which the original's language model is told whom it plays (it has no strategy)."""
        article = "an" if self.brand == "Audi" else "a"
        wish = f"{article} {self.brand} {self.type} with {', '.join(self.features)}"
        return f"Personality: {self.personality}. Prefers {wish}. Budget: ${self.budget:,}\n"


def draw_buyer(rng: np.random.Generator, fixed: Mapping[str, Any]) -> Buyer:
    """A profile of which each part is drawn uniformly, one to four features among them, except for what is fixed.

    Raises:
        UserError: for a fixed part that is none of `CHOICES`.
    """
    parts = {name: values[int(rng.integers(len(values)))] for name, values in CHOICES.items() if name != "features"}
    order = rng.permutation(len(CHOICES["features"]))[: int(rng.integers(1, _MOST_FEATURES + 1))]
    parts["features"] = tuple(CHOICES["features"][place] for place in order)
    for name, value in fixed.items():
        parts[name] = _features(value) if name == "features" else _one_of(name, value)
    return Buyer(**parts)


def _one_of(name: str, value: Any) -> Any:
    if value not in CHOICES[name] or isinstance(value, bool):
        raise UserError(f"{name} must be one of {', '.join(map(str, CHOICES[name]))}, got {value!r:.60}")
    return value


def _features(value: Any) -> tuple[str, ...]:
    chosen = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not 1 <= len(chosen) <= _MOST_FEATURES or len({*chosen}) < len(chosen):
        raise UserError(f"features must be a list of one to four different ones, got {value!r:.60}")
    return tuple(_one_of("features", feature) for feature in chosen)
