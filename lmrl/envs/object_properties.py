"""What is true of the 158 objects: yes-or-no properties, each with several ways to ask for it."""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

from lmrl.envs.objects import Thing, place_of, things

__all__ = ["Property", "properties", "those_with"]

_FILE = "twenty_questions_properties.tsv"
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
    lines = (files("lmrl") / "assets" / _FILE).read_text(encoding="utf-8").splitlines()[1:]
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
    if limit := _LIMIT.fullmatch(item):
        measure, sign, number = limit.groups()
        return those_with(lambda thing: _within(getattr(thing, measure), sign, float(number)))
    if item in place_of():
        return 1 << place_of()[item]
    found = those_with(lambda thing: thing.category == item)
    assert found, f"{_FILE}: {item!r} is no object and no category"
    return found


def _within(value: float | None, sign: str, limit: float) -> bool:
    return value is not None and _OPERATORS[sign](value, limit)
