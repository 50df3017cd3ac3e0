"""Whether a question of Twenty Questions is a guess, and of what: a small grammar instead of a tagger.

A guess is ``FRAME FILLER* NAME``: nothing before the name but the words in which a guess is put ("Is it", "Are you
thinking of", "Could it be"), articles, words that only count or qualify ("a pair of", "some kind of", "big", "red"),
and nothing after it but marks. Any other word may name another thing ("Is it bigger than a car?", "Is it a toy car?",
"Is it a cat or a dog?"), so it makes the question no guess.

The published rule asks a part-of-speech tagger, which has to be downloaded, for the nouns of the question: apart from
"object", "something", "type", "kind" and words followed by "of", all must belong to a name of the hidden word, with
which the question ends. Ours accepts no verb ("Do you drive a car?") and only known words before "of".
Source: LMRL-Gym, appendix C.6.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

__all__ = ["LONGEST", "guessed", "is_framed", "is_guess"]

LONGEST = 300
"""Letters of the longest question that is read."""

_THING = (
    r"(?:it|this|that|the (?:hidden |secret )?(?:object|thing|item|word|answer)|your (?:object|thing|item|word|answer))"
)
_FRAME = re.compile(
    rf"(?:(?:so|then|ok|hmm|maybe|perhaps|well) )*"
    rf"(?:(?:is|was|are) {_THING}|(?:could|would|can|might|may|must|will) {_THING}(?: happen to)? be"
    rf"|does {_THING} happen to be|do you mean|are you thinking (?:of|about)"
    rf"|is (?:the (?:object|thing)|what|the one) you (?:are thinking|think|thought) (?:of|about)"
    rf"|(?:i think |i guess |i say |my guess is )?(?:it is|it s|that it is|its)|i guess|my (?:final )?guess is"
    rf")(?: |$)"
)
_OF = re.compile(
    r"(?:kinds?|types?|sorts?|forms?|pairs?|pieces?|sets?|bunch|bottle|tube|sheet|pack|"
    r"stick|head|ear|cob|stalk|slice|bit|lump|body|example) of "
)
_FILLERS = frozenset(
    "a an the some any one your this that called named something object just simply maybe perhaps possibly probably "
    "really actually by chance in fact like only single ordinary regular normal typical usual common plain simple real "
    "big large huge small little tiny long short tall old new nice fresh ripe whole red green blue yellow white black "
    "brown orange gray grey pink".split()
) - {"like", "in"}  # they relate the object to another: "Is it like a cat?"


def is_guess(question: str, variants: Sequence[str]) -> bool:
    """Whether a question guesses the object that has these names, e.g. ``("Pants", "Pant", "Pair of pants")``."""
    names = guessed(question)
    return any(_plain(name) in names for name in variants)


def guessed(question: str) -> tuple[str, ...]:
    """What may be the name in a guess: the question without its frame, and without one filler after the other.

    >>> guessed("Is it a pair of big socks?")
    ('a pair of big socks', 'pair of big socks', 'big socks', 'socks')
    """
    return _guessed(question)[1] if len(question) <= LONGEST else ()


def is_framed(question: str) -> bool:
    """Whether it begins as guesses do: ``Is it some kind of toy?``."""
    return _guessed(question)[0]


@lru_cache(maxsize=1 << 16)
def _guessed(question: str) -> tuple[bool, tuple[str, ...]]:
    text = _plain(question)
    framed = _FRAME.match(text)
    text = text[framed.end() :] if framed else text
    found = []
    while text:
        found.append(text)
        counted = _OF.match(text)
        first, _, rest = text.partition(" ")
        text = text[counted.end() :] if counted else rest if first in _FILLERS else ""
    return framed is not None, tuple(found)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))
