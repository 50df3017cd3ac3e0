"""The 158 objects of Twenty Questions in 17 categories, and their yes-or-no properties.

A set of objects is an integer in the whole package: bit ``i`` stands for object ``i`` of `things`. Answers then combine
by ``&``, ``|`` and ``~``, and ``bit_count`` is the size of a set.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

__all__ = ["Property", "Thing", "everything", "place_of", "properties", "rows_of", "things", "those_with"]


@dataclass(frozen=True, slots=True)
class Thing:
    """An object that may be hidden.

    Example: ``Thing("Pants", ("Pants", "Pant", "Pair of pants"), "Clothes", "pants", ("trousers",), 38.0, 0.5, 40.0)``
    """

    name: str
    variants: tuple[str, ...]
    """Names that win as a guess; the first is ``name``."""
    category: str
    guess: str
    """The name with its article, if it has one: ``a cat``, ``pants``."""
    also: tuple[str, ...]
    """Other names that the scripted oracle understands."""
    size: float
    """Visible size in cm: mostly the longest side, less for things that hang or fold."""
    weight: float
    """In kg."""
    price: float | None
    """Usual price in dollars; None for things that are not for sale."""


def rows_of(file: str) -> list[list[str]]:
    """Return the cells of a table in this folder (tab-separated), without its header."""
    lines = (files("lmrl.envs.twenty_questions") / file).read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t") for line in lines]


@lru_cache(maxsize=1)
def things() -> tuple[Thing, ...]:
    """All objects in the published order, which decides what a seed hides in deterministic mode.

    Source: LMRL-Gym, appendix C.6, and the word list of its code; other names, sizes, weights and prices are ours.
    """
    found = []
    for category, names, guess, also, size, weight, price in rows_of("objects.tsv"):
        variants = tuple(names.split(";"))
        others = tuple(also.split(";")) if also else ()
        cost = None if price == "-" else float(price)
        found.append(Thing(variants[0], variants, category, guess, others, float(size), float(weight), cost))
    return tuple(found)


def everything() -> int:
    """The set of all objects."""
    return (1 << len(things())) - 1


@lru_cache(maxsize=1)
def place_of() -> Mapping[str, int]:
    """Return the index of each object in `things` by its name."""
    return MappingProxyType({thing.name: place for place, thing in enumerate(things())})


_LIMIT = re.compile(r"(size|weight|price)([<>])(\d+)")  # "size>40"


@dataclass(frozen=True, slots=True)
class Property:
    """A property that every object either has or lacks."""

    name: str
    yes: int
    """The set of objects that have it."""
    common: bool
    """Whether scripted policies ask for it; the oracle knows more properties than they do."""
    phrasings: tuple[str, ...]
    """Questions that ask for it; the first is the plainest."""


@lru_cache(maxsize=1)
def properties() -> tuple[Property, ...]:
    """Read the table of properties.

    ``properties.tsv`` has one line per property: name, whether policies ask for it, objects, questions. The objects are
    a list that is read from left to right. A category or an object adds to the set, and a leading ``-`` removes.
    ``size>40`` adds all objects larger than 40 cm; ``weight`` is in kg and ``price`` in dollars.
    """
    table = []
    for name, common, objects, questions in rows_of("properties.tsv"):
        yes = 0
        for item in objects.split(", "):
            yes = yes & ~_objects(item[1:]) if item.startswith("-") else yes | _objects(item)
        table.append(Property(name, yes, common == "1", tuple(questions.split(" | "))))
    return tuple(table)


def those_with(true_of: Callable[[Thing], bool]) -> int:
    """The set of objects for which a predicate holds."""
    yes = 0
    for index, thing in enumerate(things()):
        if true_of(thing):
            yes |= 1 << index
    return yes


def _objects(item: str) -> int:
    """Return the set of objects that one item of the table stands for: a limit, an object or a category."""
    limit = _LIMIT.fullmatch(item)
    if limit:
        measure, sign, number = limit.groups()

        def is_within(thing: Thing) -> bool:
            value = getattr(thing, measure)
            # Things without a price are neither cheap nor expensive.
            return value is not None and (value > float(number) if sign == ">" else value < float(number))

        return those_with(is_within)
    if item in place_of():
        return 1 << place_of()[item]
    category = those_with(lambda thing: thing.category == item)
    assert category, f"properties.tsv: {item!r} is no object and no category"
    return category
