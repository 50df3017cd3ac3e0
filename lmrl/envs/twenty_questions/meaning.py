"""The meaning of a question in Twenty Questions.

The guess that it makes, or the set of objects for which the answer is yes.

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
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from types import MappingProxyType

from lmrl.envs.twenty_questions.objects import Thing, everything, things, those_with
from lmrl.envs.twenty_questions.wording import best_match, exact_match, sort_match, stems, words_of

__all__ = ["ENOUGH", "LONGEST", "Found", "clause_meaning", "compared", "guessed", "is_framed", "is_guess", "meaning"]

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
    """Return possible names in a guess: the question without its frame, then without one filler after the other.

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


# What people compare with: how large it looks in cm, and what it weighs in kg.
_YARDSTICKS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {
        "ant": (0.5, 0.0001), "coin": (2, 0.006), "penny": (2, 0.003), "thumb": (6, 0.05), "finger": (8, 0.05),
        "egg": (6, 0.06), "mouse": (7.5, 0.03), "fist": (10, 0.4), "palm": (10, 0.4), "hand": (18, 0.45),
        "book": (25, 0.6), "brick": (20, 2.5), "head": (24, 5), "shoebox": (36, 1), "breadbox": (40, 1),
        "purse": (30, 1), "bag": (45, 1), "backpack": (45, 1), "suitcase": (65, 4), "baby": (50, 4), "child": (110, 20),
        "kid": (110, 20), "person": (170, 70), "human": (170, 70), "man": (170, 70), "woman": (170, 70),
        "adult": (170, 70), "people": (170, 70), "you": (170, 70), "me": (170, 70), "door": (200, 30),
        "room": (500, 10_000), "house": (1_000, 100_000), "building": (3_000, 1_000_000), "box": (45, 1),
        "whale": (2_500, 100_000), "planet": (1e9, 1e24), "city": (2e6, 1e12), "basket": (45, 1),
        "loaf of bread": (30, 0.6), "bread": (30, 0.6), "toaster": (30, 1.5), "bowling ball": (22, 6),
        "bicycle": (170, 12), "football field": (10_000, 1e6),
    }
)  # fmt: skip
_NUMBERS = {word: n for n, word in enumerate("zero one two three four five six seven eight nine ten".split())} | {
    "a": 1, "an": 1, "twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "hundred": 100,
    "thousand": 1_000, "million": 1e6, "few": 3, "couple": 2, "half": 0.5,
}  # fmt: skip
_UNITS: Mapping[str, tuple[str, float]] = MappingProxyType(
    {
        "pound": ("weight", 0.4536), "lb": ("weight", 0.4536), "kilogram": ("weight", 1), "kilo": ("weight", 1),
        "kg": ("weight", 1), "gram": ("weight", 0.001), "ounce": ("weight", 0.0283), "ton": ("weight", 1_000),
        "inch": ("size", 2.54), "inche": ("size", 2.54), "foot": ("size", 30.48), "feet": ("size", 30.48),
        "meter": ("size", 100), "metre": ("size", 100), "yard": ("size", 91.4), "centimeter": ("size", 1),
        "cm": ("size", 1), "mile": ("size", 160_934), "dollar": ("price", 1), "buck": ("price", 1),
        "euro": ("price", 1), "cent": ("price", 0.01),
    }
)  # fmt: skip
_MORE = re.compile(
    r"\b(?:bigger|larger|greater|taller|longer|wider|heavier|higher|more|over|above|exceed|at least|"
    r"too (?:big|large) for)\b"
)
_LESS = re.compile(
    r"\b(?:smaller|shorter|lighter|tinier|littler|less|cheaper|under|below|fits?|contained|squeezed?|small enough)\b"
)
_SAME = re.compile(r"\b(?:as (?:big|large|tall|long|heavy|small) as|(?:the|same) size (?:of|as)|size of|sized like)\b")
_WEIGHT = re.compile(r"\b(?:weighs?|weight|heavier|lighter|heavy)\b")
_PRICE = re.compile(r"\b(?:costs?|price|priced|worth|expensive|cheaper|buy)\b")
_SPLIT = re.compile(
    r"\b(?:than|inside of|inside|into|in|for|as|size of|under|over|at least)\b(?! (?:more|less|under|over)\b)"
)
_EQUAL = 1.6


def compared(words: tuple[str, ...]) -> int | None:
    """The objects for which a comparison holds (bit ``i``: object ``i``); None if the question compares nothing known.

    Args:
        words: of the question, in small letters.
    """
    text = " ".join(words)
    same, more, less = (bool(rule.search(text)) for rule in (_SAME, _MORE, _LESS))
    if not (same or more or less) or not _SPLIT.search(text):
        return None
    found = _yardstick(text)
    if found is None:
        return None
    measure, value = found
    if same:
        return those_with(lambda thing: value / _EQUAL <= (_measured(thing, measure) or 0) <= value * _EQUAL)
    if more:
        return those_with(lambda thing: (_measured(thing, measure) or 0) > value)

    def is_less(thing: Thing) -> bool:
        size = _measured(thing, measure)
        return size is not None and size < value

    return those_with(is_less)


def _measured(thing: Thing, measure: str) -> float | None:
    value: float | None = getattr(thing, measure)
    return value


def _yardstick(text: str) -> tuple[str, float] | None:
    """What is measured, and the value to compare with."""
    rest = _SPLIT.split(text)[-1].split()
    for place, word in enumerate(rest):
        unit = _UNITS.get(word.rstrip("s") if word != "feet" else word)
        if unit:
            return unit[0], _number(rest[:place]) * unit[1]
    measure = "price" if _PRICE.search(text) else "weight" if _WEIGHT.search(text) else "size"
    if measure == "price" and rest and rest[-1].isdigit():  # $100
        return measure, float(rest[-1])
    value = _reference(tuple(word for word in rest if word not in _ARTICLES), measure)
    return None if value is None else (measure, value)


_ARTICLES = frozenset(
    "a an the my your our average human typical normal regular adult size sized one single usual".split()
)


def _number(words: list[str]) -> float:
    """``a few hundred`` is 300; no number is 1."""
    total = 1.0
    for word in words:
        total *= float(word) if word.isdigit() else _NUMBERS.get(word, 1)
    return total


def _reference(words: tuple[str, ...], measure: str) -> float | None:
    name = " ".join(words) or "human"
    singular = name.removesuffix("s")
    if measure != "price":
        for word in (name, singular):
            if word in _YARDSTICKS:
                return _YARDSTICKS[word][0 if measure == "size" else 1]
    thing = _by_name().get(name) or _by_name().get(singular)
    return None if thing is None else _measured(thing, measure)


@lru_cache(maxsize=1)
def _by_name() -> Mapping[str, Thing]:
    return {name.lower(): thing for thing in things() for name in (*thing.variants, *thing.also)}


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
    named = _named(text)
    if named:
        return 1.0, named
    yes = compared(words)
    if yes is not None:
        return 1.0, yes
    found = best_match(words)
    told = stems(words)
    if is_framed(text) and (len(told) == 1 or found[0] < _SURE):
        sort = _sort(told)
        if sort:
            return sort
    example = _EXAMPLE.search(text) if found[0] < _SURE else None
    if example and example.start():
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
