"""Single questions to the oracle of Twenty Questions, with the right answers: lessons for a model, and tests of it.

The table of properties asks in few words. ``paraphrases.tsv`` has 100 other wordings of each kind of question, with a
place for what the table says there: "Is it made of metal?" becomes "Would you find metal in it?". Every fifth of them,
and the last phrasing of each property, are in no lesson.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from random import Random
from types import MappingProxyType

from lmrl.envs.task import PartnerQuestion
from lmrl.envs.twenty_questions.env import guess_of
from lmrl.envs.twenty_questions.objects import Property, properties, rows_of, things
from lmrl.types import PartnerRequest

__all__ = ["GROUPS", "HELD_OUT", "common_properties", "lessons", "paraphrases", "probe"]

HELD_OUT = -1
"""Index of the phrasing of a property that no policy uses."""
_HELD_OUT_OF = 5  # one of five paraphrases is held out
GROUPS = ("phrasings of the data", "held-out phrasings", "held-out paraphrases")
"""Policies use all phrasings of a property except the last one, and no paraphrases."""

# The kinds of questions. What stands in the group fills the place in a paraphrase.
_TEMPLATES: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "kind": re.compile(r"Is it (an? .+)\?"),
        "quality": re.compile(r"Is it ([\w-]+)\?"),
        "has": re.compile(r"Does it have (.+)\?"),
        "made_of": re.compile(r"Is it made of (.+)\?"),
        "used_for": re.compile(r"Is it used for (.+)\?"),
        "used_to": re.compile(r"Is it used to (.+)\?"),
        "used_in": re.compile(r"Is it used ((?:in|on|with) .+)\?"),
        "found": re.compile(r"Is it (?:found|kept) ((?:in|on|at) .+)\?"),
        "worn": re.compile(r"Is it worn ((?:in|on|around) .+)\?"),
        "can_you": re.compile(r"Can you (.+)\?"),
        "does_it": re.compile(r"Does it (?!have )(.+)\?"),
        "do_people": re.compile(r"Do (?:you|people) (.+)\?"),
        "bigger": re.compile(r"Is it bigger than (.+)\?"),
    }
)
_GUESSES = 0.1  # share of lessons that guess an object
_PARAPHRASED = 0.5  # share of lessons in words of ``paraphrases.tsv``
_YES = 1 / 3  # share of lessons that are answered by yes; of all questions 7 % are


@lru_cache(maxsize=1)
def common_properties() -> tuple[Property, ...]:
    """Return the properties that scripted policies ask for."""
    return tuple(item for item in properties() if item.common)


def paraphrases(question: str, held_out: bool) -> tuple[str, ...]:
    """Return other wordings of a question of the table; none if it is of no known kind.

    Args:
        question: one with a property's or an object's plain words, such as ``Is it made of metal?``.
        held_out: return the wordings that are in no lesson instead of those of the lessons.

    >>> len(paraphrases("Is it made of metal?", held_out=True))
    20
    """
    for template, pattern in _TEMPLATES.items():
        match = pattern.fullmatch(question)
        if match:
            return tuple(text.replace("{}", match[1]) for text in _wordings(template, held_out))
    return ()


@lru_cache(maxsize=2 * len(_TEMPLATES))
def _wordings(template: str, held_out: bool) -> tuple[str, ...]:
    texts = [text for name, text in rows_of("paraphrases.tsv") if name == template]
    kept = []
    for index, text in enumerate(texts):
        is_held_out = index % _HELD_OUT_OF == _HELD_OUT_OF - 1
        if is_held_out == held_out:
            kept.append(text)
    return tuple(kept)


def probe(seed: int) -> Iterator[PartnerQuestion]:
    """Yield questions without end about random objects and common properties, the `GROUPS` in turn."""
    chance = Random(f"probe {seed}")
    reworded = [item for item in common_properties() if _wordings_of(item, held_out=True)]
    while True:
        for group in GROUPS:
            item = chance.choice(reworded if group == GROUPS[2] else common_properties())
            if group == GROUPS[0]:
                question = chance.choice(item.phrasings[:HELD_OUT])
            elif group == GROUPS[1]:
                question = item.phrasings[HELD_OUT]
            else:
                question = _wording(item, chance, held_out=True)
                while question not in _tested():  # the table has the same words
                    question = _wording(item, chance, held_out=True)
            yield _asked(question, item.yes, chance.randrange(len(things())), chance, group)


def lessons(seed: int) -> Iterator[PartnerQuestion]:
    """Yield questions without end to learn from, none in words that are held out.

    A third is answered by yes, so that a model learns what is true of few objects, too.
    """
    chance = Random(f"lessons {seed}")
    while True:
        is_yes = chance.random() < _YES
        is_reworded = chance.random() < _PARAPHRASED
        index = chance.randrange(len(things()))
        if chance.random() < _GUESSES:
            named = index if is_yes else chance.randrange(len(things()))
            question = guess_of(things()[named]).strip()
            yes = 1 << named
            if is_reworded:
                question = chance.choice(paraphrases(question, held_out=False) or (question,))
        else:
            item = chance.choice(properties())
            while bool(item.yes >> index & 1) != is_yes:
                item = chance.choice(properties())
                index = chance.randrange(len(things()))
            yes = item.yes
            if is_reworded and _wordings_of(item, held_out=False):
                question = _wording(item, chance, held_out=False)
            else:
                question = chance.choice(item.phrasings[:HELD_OUT])
        if question not in _tested():  # two kinds of questions share some words
            yield _asked(question, yes, index, chance, "lessons")


@lru_cache(maxsize=1)
def _tested() -> frozenset[str]:
    """Return the words that no lesson uses: last phrasings, and held-out paraphrases that the table does not have."""
    known: set[str] = set()
    last: set[str] = set()
    reworded: set[str] = set()
    for item in properties():
        known.update(item.phrasings[:HELD_OUT])
        last.add(item.phrasings[HELD_OUT])
        for wordings in _wordings_of(item, held_out=True):
            reworded.update(wordings)
    return frozenset((reworded - known) | last)


def _wording(item: Property, chance: Random, held_out: bool) -> str:
    return chance.choice(chance.choice(_wordings_of(item, held_out)))


@lru_cache(maxsize=1024)
def _wordings_of(item: Property, held_out: bool) -> tuple[tuple[str, ...], ...]:
    """Return the paraphrases of each phrasing that has some."""
    found = []
    for phrasing in item.phrasings[:HELD_OUT]:
        wordings = paraphrases(phrasing, held_out)
        if wordings:
            found.append(wordings)
    return tuple(found)


def _asked(question: str, yes: int, index: int, chance: Random, group: str) -> PartnerQuestion:
    thing = things()[index]
    facts = {"word": thing.name, "variants": thing.variants}
    request = PartnerRequest("twenty_questions", facts, (f"{question}\n",), (), chance.getrandbits(31))
    return PartnerQuestion(group, request, is_yes=bool(yes >> index & 1))
