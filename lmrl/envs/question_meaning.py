"""What a yes-or-no question of Twenty Questions means: the set of objects for which the answer is yes."""

import re
from functools import lru_cache, reduce

from lmrl.envs.guess_verifier import LONGEST, is_framed
from lmrl.envs.objects import everything
from lmrl.envs.question_clause import ENOUGH, Found, clause_meaning
from lmrl.envs.question_matching import exact_match
from lmrl.envs.question_sizes import compared
from lmrl.envs.question_words import stems, words_of

__all__ = ["meaning"]

_BOTH = 0.7
"""Two sides of "and" are taken apart if each matches that well."""
_MOST_LINKS = 8
"""Questions with more are not understood: each link multiplies the readings that are tried."""
_LENT = 7
"""At most so many words, less one, are left out of a side that lends the others its beginning or end."""
_NOT = frozenset({"not", "no", "never", "nothing"})
_OPEN = re.compile(r"\W*(?:what|which|who|whose|when|where|how|why|tell|list|name|describe)\b", re.IGNORECASE)
_RHETORICAL = re.compile(r"\W*\w+n['\u2019]?t\b", re.IGNORECASE)
_PARTICIPLES = frozenset("used worn found made madeof eaten kept played seen driven sold grown covered".split())
_NO_NOUNS = frozenset(
    "is it be are was not no often sometimes ever object thing item something that and or get".split()
)
_STARTS = frozenset("is are was were do does did can could would will might may has have should".split())


def meaning(question: str) -> int:
    """The objects for which a question is answered by yes: bit ``i`` stands for object ``i`` of `things`.

    Understood, in this order: questions of the table; "or" (yes if either holds), "and", "not" (turned round, but not
    in "Isn't it ...?", which is asked to hear yes); guesses by any name of an object; comparisons; and whatever shares
    enough words with a question of the table. A question that is not understood, or that cannot be answered by yes or
    no, holds for no object.
    """
    return _meaning(question) if len(question) <= LONGEST else 0


@lru_cache(maxsize=1 << 16)
def _meaning(question: str) -> int:
    if _OPEN.match(question):
        return 0
    yes = exact_match(words_of(question))
    if yes is not None:
        return yes
    words = words_of(question.replace(",", " or ") if " or " in question else question)
    if _RHETORICAL.match(question):
        words = tuple(word for word in words if word != "not")
    words = _unfolded(words)
    if words.count("or") + words.count("and") > _MOST_LINKS:
        return 0
    sure, yes = _of(words)
    return yes if sure >= ENOUGH else 0


@lru_cache(maxsize=1 << 14)
def _of(words: tuple[str, ...]) -> Found:
    yes = exact_match(words)
    if yes is not None:
        return 1.0, yes
    if "or" in words and (either := _either(words))[0]:
        return either
    if "and" in words and (both := _both(words))[0]:
        return both
    if _NOT & set(words):
        sure, rest = _of(tuple(word for word in words if word not in _NOT and word != "only"))
        return sure, rest if "only" in words else everything() & ~rest
    return clause_meaning(words)


def _unfolded(words: tuple[str, ...]) -> tuple[str, ...]:
    """Two clauses instead of one: ``is it a tool used for cutting``, ``is it a tool and is it used for cutting``."""
    for place in range(3, len(words) - 1):
        before = words[place - 1]
        if words[place] in _PARTICIPLES and not (before in _NO_NOUNS or before.endswith("ly")):
            return (*words[:place], "and", "is", "it", *words[place:])
    return words


def _either(words: tuple[str, ...]) -> Found:
    """Yes if one side holds; each is understood alone or with what another lends it."""
    found = _sides(words, "or")
    return max(sure for sure, _ in found), reduce(int.__or__, (yes for _, yes in found))


def _both(words: tuple[str, ...]) -> Found:
    """Yes if all sides hold; a side that says nothing is left out, and so is what only describes a sort further."""
    found = _sides(words, "and")
    if not stems(words[: words.index("and")]):
        found = found[1:]
    elif found[0][0] == 1 and found[1][0] < _BOTH and is_framed(" ".join(words)):
        return _BOTH, found[0][1]
    sure = min(sure for sure, _ in found)
    yes = reduce(int.__and__, (yes for _, yes in found))
    return (sure, yes) if sure >= _BOTH or "not" in words or len(found) == 1 else (0.0, 0)


def _sides(words: tuple[str, ...], link: str) -> list[Found]:
    first, *others = _split(words, link)
    borrowed = (first + others[-1][start:] for start in range(1, min(len(others[-1]), _LENT)))
    return [_best(first, *borrowed), *(_side(first, other) for other in others)]


def _side(first: tuple[str, ...], words: tuple[str, ...]) -> Found:
    if words[:1] and (words[0] in _STARTS or compared(words) is not None):
        return _of(words)
    lent = (first[:end] + words for end in range(len(first) - 1, max(0, len(first) - _LENT), -1))
    return _best(*lent, words)


def _split(words: tuple[str, ...], link: str) -> list[tuple[str, ...]]:
    text = f" {' '.join(words)} ".split(f" {link} ")
    return [tuple(side.split()) for side in text]


def _best(*candidates: tuple[str, ...]) -> Found:
    """What is understood best; the first of equals."""
    return max((_of(words) for words in candidates if words), key=lambda found: found[0], default=(0.0, 0))
