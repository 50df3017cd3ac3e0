"""What a simple question means: one without "or", "and" and "not"."""

import re
from functools import lru_cache, reduce

from lmrl.envs.guess_verifier import guessed, is_framed
from lmrl.envs.objects import things
from lmrl.envs.question_matching import best_match, sort_match
from lmrl.envs.question_sizes import compared
from lmrl.envs.question_words import stems

__all__ = ["ENOUGH", "Found", "clause_meaning"]

ENOUGH = 0.55
"""Questions that match less well than this are not understood."""
_SURE = 0.9
"""A question about a sort of things is taken as a known one if it matches that well."""
_EXAMPLE = re.compile(r"(?<!look )(?<!shaped )(?<!sound )(?<!taste )(?<!feel )\b(?:such as|like|for example)\b")

Found = tuple[float, int]
"""How sure it is that a question was understood, from 0 to 1, and the objects for which it holds."""


@lru_cache(maxsize=1 << 14)
def clause_meaning(words: tuple[str, ...]) -> Found:
    """A guess of an object, a comparison, a guess of a sort ("a green vegetable"), or what a known question asks."""
    text = " ".join(words)
    if named := _named(text):
        return 1.0, named
    if (yes := compared(words)) is not None:
        return 1.0, yes
    found = best_match(words)
    told = stems(words)
    if is_framed(text) and (len(told) == 1 or found[0] < _SURE) and (sort := _sort(told)):
        return sort
    if found[0] < _SURE and (example := _EXAMPLE.search(text)) and example.start():
        return max(found, clause_meaning(tuple(text[: example.start()].split())))
    return found if found[0] >= ENOUGH else (0.0, 0)


def _sort(told: tuple[str, ...]) -> Found | None:
    """A guess of a sort, perhaps with a quality: "a toy", "a green vegetable"; None if it is something else."""
    if len(told) not in (1, 2):
        return None
    parts = [sort_match(stem) for stem in told]
    if None not in parts:
        return 1.0, reduce(int.__and__, (part for part in parts if part is not None))
    return (0.0, 0) if len(told) == 1 else None


def _named(text: str) -> int:
    return sum(1 << place for place in {_places()[name] for name in guessed(text) if name in _places()})


@lru_cache(maxsize=1)
def _places() -> dict[str, int]:
    found: dict[str, int] = {}
    for place, thing in enumerate(things()):
        for name in (*thing.also, *thing.variants):
            for form in (name, f"{name}s"):
                found[" ".join(re.findall(r"[a-z0-9]+", form.lower()))] = place
    return found
