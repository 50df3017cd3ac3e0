"""The 158 objects of Twenty Questions in 17 categories, and the yes-or-no properties that are true of them."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

__all__ = ["Property", "Thing", "everything", "place_of", "properties", "things", "those_with"]

_OBJECTS = "objects.tsv"


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
    lines = (files("lmrl.envs.twenty_questions") / _OBJECTS).read_text(encoding="utf-8").splitlines()[1:]
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


_PROPERTIES = "properties.tsv"
_LIMIT = re.compile(r"(size|weight|price)([<>])(\d+)")
_OPERATORS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType({"<": operator.lt, ">": operator.gt})


@dataclass(frozen=True, slots=True)
class Property:
    """Something that is true of some objects and false of all others."""

    name: str
    yes: int
    """Bit ``i`` is set if it is true of object ``i`` of `things`."""
    common: bool
    """Whether scripted players ask for it; the oracle knows more than they do."""
    phrasings: tuple[str, ...]
    """Questions that ask for it; the first is the plainest."""


@lru_cache(maxsize=1)
def properties() -> tuple[Property, ...]:
    """The table.

    Its file has one line per property: name, whether players ask for it, objects, questions. The objects are read from
    left to right: a category or an object adds, one with ``-`` before it takes away, ``size>40`` adds all objects that
    look larger than 40 cm (``weight`` in kg and ``price`` in dollars likewise).
    """
    lines = (files("lmrl.envs.twenty_questions") / _PROPERTIES).read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return tuple(
        Property(name, _objects(yes), common == "1", tuple(asked.split(" | "))) for name, common, yes, asked in rows
    )


def those_with(true_of: Callable[[Thing], bool]) -> int:
    """The set of objects for which something holds: bit ``i`` stands for object ``i``."""
    return sum(1 << place for place, thing in enumerate(things()) if true_of(thing))


def _objects(text: str) -> int:
    found = 0
    for item in text.split(", "):
        found = found & ~_set(item[1:]) if item.startswith("-") else found | _set(item)
    return found


def _set(item: str) -> int:
    limit = _LIMIT.fullmatch(item)
    if limit:
        measure, sign, number = limit.groups()
        return those_with(lambda thing: _within(getattr(thing, measure), sign, float(number)))
    if item in place_of():
        return 1 << place_of()[item]
    found = those_with(lambda thing: thing.category == item)
    assert found, f"{_PROPERTIES}: {item!r} is no object and no category"
    return found


def _within(value: float | None, sign: str, limit: float) -> bool:
    return value is not None and _OPERATORS[sign](value, limit)
