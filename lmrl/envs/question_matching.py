"""Which property a question asks for, by the words it shares with the known ways of asking."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from lmrl.envs.object_properties import properties
from lmrl.envs.question_words import LIGHT, stems, words_of

__all__ = ["best_match", "exact_match", "sort_match"]

_LIGHT = 0.35
_QUALITIES = frozenset("easy big small tiny long whole red green yellow brown white black blue gray".split())
_QUALITY = 0.6
"""Share of its weight that such a word keeps: it often only qualifies another."""
_UNHEARD = 2.5
"""Weight of a word that stands in no known question: it is about something else."""
_POOL = 0.3


@dataclass(frozen=True)
class _Index:
    exact: Mapping[tuple[str, ...], int]
    """The objects by the words of a question."""
    asked: tuple[tuple[frozenset[str], float, int], ...]
    """Stems of a known question, their weight, and the number of its property."""
    named: Mapping[str, int]
    """The objects by the only stem of a question that begins with "is"."""
    pools: tuple[frozenset[str], ...]
    """All stems of a property's questions."""
    holders: Mapping[str, tuple[int, ...]]
    """Known questions by a stem they hold."""
    weights: Mapping[str, float]
    yes: tuple[int, ...]


def exact_match(words: tuple[str, ...]) -> int | None:
    """The objects for which a question of the table holds, if it is one, word for word."""
    return _index().exact.get(words)


def sort_match(stem: str) -> int | None:
    """The objects of a sort or quality, for which the table asks with this one word ("Is it furniture?")."""
    return _index().named.get(stem)


def best_match(words: tuple[str, ...]) -> tuple[float, int]:
    """How well the best known question fits (0: not at all, 1: the same stems) and for which objects it holds.

    The measure is Dice's coefficient of the two sets of stems, rare ones weighing more, and a share of how much of the
    question any phrasing of that property covers.
    """
    index, asked = _index(), frozenset(stems(words))
    weight = sum(_weight(index, stem) for stem in asked)
    heard = {place for stem in asked if stem not in LIGHT for place in index.holders.get(stem, ())}
    best, found = 0.0, 0
    for place in sorted(heard):
        other, other_weight, row = index.asked[place]
        shared = sum(index.weights[stem] for stem in asked & other)
        pooled = sum(index.weights[stem] for stem in asked & index.pools[row])
        score = (1 - _POOL) * 2 * shared / (weight + other_weight) + _POOL * pooled / weight
        if score > best + 1e-9:
            best, found = score, index.yes[row]
    return best, found


def _weight(index: _Index, stem: str) -> float:
    return index.weights.get(stem, _UNHEARD)


def _rarity(stem: str, one_in: float) -> float:
    if stem in LIGHT:
        return _LIGHT
    return math.log(1 + one_in) * (_QUALITY if stem in _QUALITIES else 1)


@lru_cache(maxsize=1)
def _index() -> _Index:
    rows = properties()
    asked = [(frozenset(stems(words_of(text))), row) for row, item in enumerate(rows) for text in item.phrasings]
    pools = [frozenset().union(*(held for held, row in asked if row == number)) for number in range(len(rows))]
    spread = Counter(stem for pool in pools for stem in pool)
    weights = {stem: _rarity(stem, len(rows) / count) for stem, count in spread.items()}
    holders: dict[str, list[int]] = defaultdict(list)
    for place, (held, _) in enumerate(asked):
        for stem in held:
            holders[stem].append(place)
    return _Index(
        exact={words_of(text): item.yes for item in rows for text in item.phrasings},
        asked=tuple((held, sum(weights[stem] for stem in held), row) for held, row in asked),
        named=_named(),
        pools=tuple(pools),
        holders={stem: tuple(places) for stem, places in holders.items()},
        weights=weights,
        yes=tuple(item.yes for item in rows),
    )


def _named() -> dict[str, int]:
    found: dict[str, int] = {}
    for item in properties():
        for text in item.phrasings:
            held = stems(words_of(text))
            if len(held) == 1 and text.startswith("Is "):
                found.setdefault(held[0], item.yes)
    return found
