"""The meaning of a question in Twenty Questions: the guess it makes, or the set of objects with the answer yes.

A guess is ``FRAME FILLER* NAME``. The frame is a phrase such as "Is it", "Are you thinking of" or "Could it be".
Fillers are articles and words that only count or qualify ("a pair of", "some kind of", "big", "red"). Nothing but
punctuation follows the name. Any other word may refer to another thing ("Is it bigger than a car?", "Is it a toy
car?", "Is it a cat or a dog?"), so the question is then no guess.

The published rule needs a part-of-speech tagger, which would have to be downloaded: apart from "object", "something",
"type", "kind" and words followed by "of", all nouns must belong to a name of the hidden word, and the question must end
with it. Our rule accepts no verb ("Do you drive a car?") and only known words before "of".
Source: LMRL-Gym, appendix C.6.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from lmrl.envs.twenty_questions.objects import Thing, everything, things, those_with
from lmrl.envs.twenty_questions.wording import LONGEST, best_match, exact_match, sort_match, stems, words_of

__all__ = ["ENOUGH", "Found", "clause_meaning", "compared", "guessed", "is_framed", "is_guess", "meaning"]

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
# Without "like" and "in", which relate the object to another: "Is it like a cat?".
_FILLERS = frozenset(
    "a an the some any one your this that called named something object just simply maybe perhaps possibly probably "
    "really actually by chance only single ordinary regular normal typical usual common plain simple real "
    "big large huge small little tiny long short tall old new nice fresh ripe whole red green blue yellow white black "
    "brown orange gray grey pink".split()
)


def is_guess(question: str, variants: Sequence[str]) -> bool:
    """Whether a question guesses the object with these names, e.g. ``("Pants", "Pant", "Pair of pants")``."""
    names = guessed(question)
    return any(_plain(name) in names for name in variants)


def guessed(question: str) -> tuple[str, ...]:
    """Return the possible names in a guess: the question without its frame, then with ever fewer fillers.

    >>> guessed("Is it a pair of big socks?")
    ('a pair of big socks', 'pair of big socks', 'big socks', 'socks')
    """
    question = question.strip()
    return _guessed(question)[1] if len(question) <= LONGEST else ()


def is_framed(question: str) -> bool:
    """Whether a question begins like a guess: ``Is it some kind of toy?``."""
    return _guessed(question)[0]


@lru_cache(maxsize=1 << 16)
def _guessed(question: str) -> tuple[bool, tuple[str, ...]]:
    text = _plain(question)
    frame = _FRAME.match(text)
    text = text[frame.end() :] if frame else text
    names = []
    # Remove one filler after the other. What is left at each step may be the name, since names can begin with one.
    while text:
        names.append(text)
        counted = _OF.match(text)
        first, _, rest = text.partition(" ")
        if counted:
            text = text[counted.end() :]
        elif first in _FILLERS:
            text = rest
        else:
            text = ""
    return frame is not None, tuple(names)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


# Things that people compare with: visible size in cm, and weight in kg.
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
_NUMBERS: dict[str, float] = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "a": 1, "an": 1, "twelve": 12, "fifteen": 15, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50,
    "hundred": 100, "thousand": 1_000, "million": 1e6, "few": 3, "couple": 2, "half": 0.5,
}  # fmt: skip
_AMOUNT = re.compile(r"\d*\.?\d+")
# Units without the plural: the attribute of `Thing` that they measure, and the factor to cm, kg or dollars.
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
# These compare only with a number ("under a shirt" tells the place), or with "than" a named size, weight or price.
_VAGUE = frozenset({"more", "less", "over", "under", "above", "below"})
_SAME = re.compile(r"\b(?:as (?:big|large|tall|long|heavy|small) as|(?:the|same) size (?:of|as)|size of|sized like)\b")
_SIZE = re.compile(r"\b(?:size|room|space|big|large|tall|long|wide|high)\b")
_WEIGHT = re.compile(r"\b(?:weighs?|weight|heavier|lighter|heavy)\b")
_PRICE = re.compile(r"\b(?:costs?|price|priced|worth|expensive|cheaper|buy)\b")
# The thing or the number to compare with follows the last of these words.
_SPLIT = re.compile(
    r"\b(?:than|inside of|inside|into|in|for|as|size of|under|over|at least)\b(?! (?:more|less|under|over)\b)"
)
_EQUAL = 1.6  # two sizes are the same if their ratio is at most this


def compared(words: tuple[str, ...]) -> int | None:
    """Return the objects for which a comparison holds; None if the question compares nothing known.

    Args:
        words: the words of the question in normal form.
    """
    text = " ".join(words)
    same = _SAME.search(text)
    more = _MORE.search(text)
    less = _LESS.search(text)
    if not (same or more or less) or not _SPLIT.search(text):
        return None
    yardstick = _yardstick(text)
    if yardstick is None:
        return None
    measure, value, is_number = yardstick
    comparatives = {*_SAME.findall(text), *_MORE.findall(text), *_LESS.findall(text)}
    names_measure = measure != "size" or _SIZE.search(text)
    if comparatives <= _VAGUE and not is_number and not (names_measure and "than" in words):
        return None

    def holds(thing: Thing) -> bool:
        size: float | None = getattr(thing, measure)
        if same:
            return value / _EQUAL <= (size or 0) <= value * _EQUAL
        if more:
            return (size or 0) > value
        return size is not None and size < value  # a thing without price is not cheaper either

    return those_with(holds)


_ARTICLES = frozenset(
    "a an the my your our average human typical normal regular adult size sized one single usual".split()
)


def _yardstick(text: str) -> tuple[str, float, bool] | None:
    """Return the attribute of `Thing` that a question compares, the value to compare with, and if that is a number."""
    rest = _SPLIT.split(text)[-1].split()
    # A number with a unit: "a few hundred pounds".
    number = 1.0
    for word in rest:
        unit = _UNITS.get(word.rstrip("s"))
        if unit:
            measure, factor = unit
            return measure, number * factor, True
        number *= float(word) if _AMOUNT.fullmatch(word) else _NUMBERS.get(word, 1)
    measure = "size"
    if _PRICE.search(text):
        measure = "price"
    elif _WEIGHT.search(text):
        measure = "weight"
    if measure == "price" and rest and _AMOUNT.fullmatch(rest[-1]):  # $100
        return measure, float(rest[-1]), True
    # A thing: a familiar one ("a breadbox"), or another object of the game. Without a name it is a person.
    name = " ".join([word for word in rest if word not in _ARTICLES]) or "human"
    singular = name.removesuffix("s")
    known = _YARDSTICKS.get(name) or _YARDSTICKS.get(singular)
    if known and measure != "price":
        return measure, known[0 if measure == "size" else 1], False
    thing = _by_name().get(name) or _by_name().get(singular)
    value: float | None = getattr(thing, measure, None)
    return None if value is None else (measure, value, False)


@lru_cache(maxsize=1)
def _by_name() -> Mapping[str, Thing]:
    named: dict[str, Thing] = {}
    for thing in things():
        for name in (*thing.variants, *thing.also):
            named[name.lower()] = thing
    return named


ENOUGH = 0.55
"""The least confidence with which a question counts as understood."""
_SURE = 0.9  # confidence from which a known question goes before a guess of a sort
_EXAMPLE = re.compile(r"(?<!look )(?<!shaped )(?<!sound )(?<!taste )(?<!feel )\b(?:such as|like|for example)\b")

Found = tuple[float, int]
"""The confidence that a question was understood, from 0 to 1, and the set of objects for which the answer is yes."""


@lru_cache(maxsize=1 << 14)
def clause_meaning(words: tuple[str, ...]) -> Found:
    """Understand a guess of an object or of a sort ("a green vegetable"), a comparison, or a known question."""
    text = " ".join(words)
    # A guess of an object, by any of its names.
    objects = 0
    for name in guessed(text):
        if name in _places():
            objects |= 1 << _places()[name]
    if objects:
        return 1.0, objects
    yes = compared(words)
    if yes is not None:
        return 1.0, yes
    found = best_match(words)
    known_stems = stems(words)
    if is_framed(text) and (len(known_stems) == 1 or found[0] < _SURE):
        sort = _sort(known_stems)
        if sort:
            return sort
    # Examples only illustrate: "a toy such as a ball" is a toy.
    example = _EXAMPLE.search(text) if found[0] < _SURE else None
    if example and example.start():
        return max(found, clause_meaning(tuple(text[: example.start()].split())))
    return found if found[0] >= ENOUGH else (0.0, 0)


def _sort(known_stems: tuple[str, ...]) -> Found | None:
    """Understand a guess of a sort, perhaps with a quality ("a toy", "a green vegetable"); None if it is no such."""
    if len(known_stems) not in (1, 2):
        return None
    yes = everything()
    for stem in known_stems:
        holders = sort_match(stem)
        if holders is None:
            # One unknown word is a sort that the table does not have. Two words may be another question.
            return (0.0, 0) if len(known_stems) == 1 else None
        yes &= holders
    return 1.0, yes


@lru_cache(maxsize=1)
def _places() -> dict[str, int]:
    """Return the index of each object by all of its names in plain words, with and without a plural s."""
    places: dict[str, int] = {}
    for index, thing in enumerate(things()):
        for name in (*thing.also, *thing.variants):
            places[_plain(name)] = index
            places[_plain(f"{name}s")] = index
    return places


_BOTH = 0.7  # confidence that every side of "and" needs
_MOST_LINKS = 8  # questions with more links are not understood: each multiplies the readings to try
_LENT = 7  # a side may borrow the words of another one except for up to 6 of them
_NOT = frozenset({"not", "no", "never", "nothing"})
_OPEN = re.compile(r"\W*(?:what|which|who|whose|when|where|how|why|tell|list|name|describe)\b", re.IGNORECASE)
_RHETORICAL = re.compile(r"\W*\w+n['\u2019]?t\b", re.IGNORECASE)
_PARTICIPLES = frozenset("used worn found made madeof eaten kept played seen driven sold grown covered".split())
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # the comma of "1,000"
_NO_NOUNS = frozenset(
    "is it be are was not no often sometimes ever object thing item something that and or get".split()
)
_STARTS = frozenset("is are was were do does did can could would will might may has have should".split())


def meaning(question: str) -> int:
    """Return the set of objects for which the answer to a question is yes.

    The rules, in this order: questions of the table; "or", "and" and "not" (which inverts the answer, except in "Isn't
    it ...?"); guesses by any name of an object; comparisons; and questions that share enough words with one of the
    table. The set is empty for a question that is not understood, or that yes and no cannot answer.
    """
    question = question.strip()
    return _meaning(question) if len(question) <= LONGEST else 0


@lru_cache(maxsize=1 << 16)
def _meaning(question: str) -> int:
    if _OPEN.match(question):
        return 0
    question = _THOUSANDS.sub("", question)
    yes = exact_match(words_of(question))
    if yes is not None:
        return yes
    # The commas of "a cat, a dog or a fox" also mean "or".
    words = words_of(question.replace(",", " or ") if " or " in question else question)
    if _RHETORICAL.match(question):
        words = tuple(word for word in words if word != "not")
    # Two clauses instead of one: "is it a tool used for cutting" becomes "is it a tool and is it used for cutting".
    for place in range(3, len(words) - 1):
        before = words[place - 1]
        if words[place] in _PARTICIPLES and not (before in _NO_NOUNS or before.endswith("ly")):
            words = (*words[:place], "and", "is", "it", *words[place:])
            break
    if words.count("or") + words.count("and") > _MOST_LINKS:
        return 0
    sure, yes = _of(words)
    return yes if sure >= ENOUGH else 0


@lru_cache(maxsize=1 << 14)
def _of(words: tuple[str, ...]) -> Found:
    yes = exact_match(words)
    if yes is not None:
        return 1.0, yes
    for link, understand in (("or", _either), ("and", _both)):
        if link in words:
            found = understand(words)
            if found[0]:
                return found
    if _NOT & set(words):
        sure, yes = _of(tuple(word for word in words if word not in _NOT and word != "only"))
        # "not only" does not negate.
        return sure, yes if "only" in words else everything() & ~yes
    return clause_meaning(words)


def _either(words: tuple[str, ...]) -> Found:
    """Understand "or": the answer is yes if one side holds."""
    sure = 0.0
    yes = 0
    for side_sure, side_yes in _sides(words, "or"):
        sure = max(sure, side_sure)
        yes |= side_yes
    return sure, yes


def _both(words: tuple[str, ...]) -> Found:
    """Understand "and": the answer is yes if all sides hold."""
    sides = _sides(words, "and")
    first_sure, first_yes = sides[0]
    if not stems(words[: words.index("and")]):
        sides = sides[1:]  # the first side is only a frame ("is it an object and can it fly")
    elif first_sure == 1 and sides[1][0] < _BOTH and is_framed(" ".join(words)):
        return _BOTH, first_yes  # the other sides only describe the sort further
    sure, yes = sides[0]
    for side_sure, side_yes in sides[1:]:
        sure = min(sure, side_sure)
        yes &= side_yes
    return (sure, yes) if sure >= _BOTH or "not" in words or len(sides) == 1 else (0.0, 0)


def _sides(words: tuple[str, ...], link: str) -> list[Found]:
    """Understand the sides of a link. A side may be incomplete and borrow the beginning or the end of another one."""
    texts = f" {' '.join(words)} ".split(f" {link} ")
    first, *others = [tuple(text.split()) for text in texts]
    last = others[-1]
    # "is it red or green fruit": the first side is "is it red fruit".
    candidates = [first]
    for start in range(1, min(len(last), _LENT)):
        candidates.append(first + last[start:])
    found = [_best(candidates)]
    for side in others:
        if side and (side[0] in _STARTS or compared(side) is not None):
            found.append(_of(side))  # complete
            continue
        # "is it used for cooking or cleaning": the second side is "is it used for cleaning".
        candidates = []
        for end in range(len(first) - 1, max(0, len(first) - _LENT), -1):
            candidates.append(first[:end] + side)
        found.append(_best([*candidates, side]))
    return found


def _best(candidates: Sequence[tuple[str, ...]]) -> Found:
    """Return the meaning of the candidate that is understood best; the first of equals."""
    best: Found | None = None
    for words in candidates:
        if words:
            found = _of(words)
            if best is None or found[0] > best[0]:
                best = found
    return best or (0.0, 0)
