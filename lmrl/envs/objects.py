"""The things that Twenty Questions hides: 158 objects in 17 categories."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

__all__ = ["Thing", "everything", "place_of", "things"]

_FILE = "twenty_questions_objects.tsv"


@dataclass(frozen=True, slots=True)
class Thing:
    """An object that may be hidden.

    Example: ``Thing("Pants", ("Pants", "Pant", "Pair of pants"), "Clothes", "pants", ("trousers",), 38.0, 0.5, 40.0)``
    """

    name: str
    variants: tuple[str, ...]
    """What a winning guess may call it; the first is its name."""
    category: str
    guess: str
    """How a guess says it: ``a cat``, ``pants``."""
    also: tuple[str, ...]
    """Other names that the scripted oracle understands."""
    size: float
    """As large as it looks, in cm: mostly its longest side, less for what hangs or folds."""
    weight: float
    """In kg."""
    price: float | None
    """In dollars, of a usual one; None: nobody sells it."""


@lru_cache(maxsize=1)
def things() -> tuple[Thing, ...]:
    """All objects; the order is the published one, which decides what a seed hides in deterministic mode.

    Source: LMRL-Gym, appendix C.6, and the reference's list of words; names in use, sizes, weights and prices are ours.
    """
    lines = (files("lmrl") / "assets" / _FILE).read_text(encoding="utf-8").splitlines()[1:]
    return tuple(_thing(*line.split("\t")) for line in lines)


def everything() -> int:
    """The set of all objects: a bit for each."""
    return (1 << len(things())) - 1


@lru_cache(maxsize=1)
def place_of() -> Mapping[str, int]:
    """From the name of an object to its place in `things`."""
    return MappingProxyType({thing.name: place for place, thing in enumerate(things())})


def _thing(category: str, names: str, guess: str, also: str, size: str, weight: str, price: str) -> Thing:
    variants = tuple(names.split(";"))
    others = tuple(also.split(";")) if also else ()
    cost = None if price == "-" else float(price)
    return Thing(variants[0], variants, category, guess, others, float(size), float(weight), cost)
