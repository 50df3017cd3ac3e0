"""From the words of a question to the property that it asks for.

Tokens, stems, synonyms, the closest known phrasing.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from lmrl.envs.twenty_questions.objects import properties

__all__ = ["LIGHT", "best_match", "exact_match", "plainly", "sort_match", "stems", "words_of"]

_PHRASES = tuple(
    (re.compile(rf"\b(?:{old})\b"), new)
    for old, new in (
        (r"isnt|isn t|aint", "is not"),
        (r"(do|does|did|would|could|was|were|are|has|have|should)n t", r"\1 not"),
        (r"can t|cant|cannot|unable to", "can not"),
        (r"dont|doesnt", "does not"),
        (r"inedible|uneatable", "not edible"),
        (r"inanimate|lifeless|nonliving|dead", "not alive"),
        (r"unnatural", "not natural"),
        (r"silent|quiet", "not noisy"),
        (r"non", "not"),
        (r"(?:other|different|else) than|anything but", "not"),
        (r"on the (?:outside|inside)|a lot of|lots of|plenty of|a bit of", ""),
        (r"(?:for it )?to (?:work|run|function|operate)$", ""),
        (r"body parts?|parts? of (?:the|a|your) body", "bodypart"),
        (r"lacks?", "not have"),
        (r"without|lacking|free of", "and not have"),
        (r"but not|(?:that|which) (?:is|are|does|do|can|has|have|will) not", "and not"),
        (r"but", "and"),
        (r"(?<!is )(?:that|which) (?=is|has|can|live|you|people|flies|eat|use|make|grow|come|run|need)", "and it "),
        (r"like (?:a |an )?(?:person|human|human being|man|woman)|human ?like|look human|humanoid", "likeperson"),
        (r"(?:a |any |some |what |the )?types? of|(?:same )?type(?= as)", "a"),
        (r"(?:man|human|person|people) made|made by (?:man|people|humans|a person|human hands)", "manmade"),
        (r"made (?:out of|of|from|with|up of)", "madeof"),
        (r"(?:composed|constructed|consists?|comprised|built|formed) (?:out )?of", "madeof"),
        (r"(?:get|go|travel|move) around(?= |$)|from (?:one )?place to (?:another )?place", "transport"),
        (r"black and white", "blackandwhite"),
        (r"living rooms?", "livingroom"),
        (r"warm blooded", "warmblooded"),
        (r"best friend", "bestfriend"),
        (r"french fries", "frenchfries"),
        (r"big cats?", "bigcat"),
        (r"cat family|family of (?:the )?cats?|cats? family", "feline"),
        (r"bread ?box", "breadbox"),
        (r"shoe ?box", "shoebox"),
        (r"tool (?:box|kit|chest)", "toolbox"),
        (r"salt ?water", "saltwater"),
        (r"fresh ?water", "freshwater"),
        (r"outer ?space", "outerspace"),
        (r"video ?games?", "videogame"),
        (r"washing machine", "laundry"),
    )
)


def plainly(text: str) -> str:
    """The same words, small letters and single spaces, with negations, links and fixed phrases in one form.

    >>> plainly("isn t it a piece of furniture that is made out of wood")
    'is not it a piece of furniture and it is madeof wood'
    """
    for old, new in _PHRASES:
        text = old.sub(new, text)
    return text


_FILE = "synonyms.tsv"
_MOST_WORDS = 40
_MOST_LETTERS = 300

# Words that any question may hold: they tell nothing apart.
_STOP = frozenset(
    "a an the is are was were be been being it its it they them that this those these thing things object something "
    "anything item one ones do does did can could would will might may shall should must you i we your my our me us "
    "he she his her someone somebody anyone everybody person people man human humans folks kind kinds sort sorts form "
    "of to at by from as for there here usually typically generally normally commonly mostly mainly often sometimes "
    "ever always likely probably possibly maybe perhaps just really actually very quite rather some any somewhat "
    "considered consider called known think thinking word answer happen happens am if so also too which what who when "
    "where how most many much more other than typical common usual primarily basically around example please ok "
    "well right enough yes no not but and or s t got has about get go goes put able way ordinary average everyday "
    "regular purpose function mean meant supposed intended require required need needs belong belongs related "
    "associated through nice into up out down off onto over under each every all both own classify classified "
    "count".split()
)
LIGHT = frozenset(
    "have having bring take contain contains filled fill full include includes cover covered comes come material "
    "main use used using uses find found made madeof on with in see seen part keep kept".split()
)
"""Words of a question's frame: they tell a little."""

_IRREGULAR = dict(
    pair.split(":")
    for pair in (
        "made:make leaves:leaf knives:knife wolves:wolf women:woman feet:foot mice:mouse children:child glasses:glass "
        "shelves:shelf used:use using:use uses:use having:have found:find seen:see kept:keep contains:contain "
        "filled:fill full:fill includes:include covered:cover comes:come"
    ).split()
)
_UNCHANGED = frozenset("clothes teeth bus gas ring string wing spring red bed reed seed feed brass".split())


def words_of(text: str) -> tuple[str, ...]:
    """The words of a question in small letters; of a very long one nothing is left."""
    if len(text) > _MOST_LETTERS:
        return ()
    return tuple(plainly(" ".join(re.findall(r"[a-z0-9]+", text.lower()))).split()[:_MOST_WORDS])


def stems(words: tuple[str, ...]) -> tuple[str, ...]:
    """What is left of the words that tell something, each reduced to the word for its meaning."""
    return tuple(_meaning(word) for word in words if word not in _STOP)


@lru_cache(maxsize=1 << 14)
def _meaning(word: str) -> str:
    if word in LIGHT:
        return _IRREGULAR.get(word, word)
    table = _synonyms()
    if word in table:
        return table[word]
    stem = _stem(word)
    return table.get(stem, stem)


@lru_cache(maxsize=1)
def _synonyms() -> dict[str, str]:
    lines = (files("lmrl.envs.twenty_questions") / _FILE).read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    found: dict[str, str] = {}
    for meaning, words in rows:
        for word in words.split():
            found[word] = found[_stem(word)] = meaning
    return found


def _stem(word: str) -> str:
    """English endings taken off: not always a word, but the same for all forms of one."""
    if word in _IRREGULAR or word in _UNCHANGED:
        return _IRREGULAR.get(word, word)
    if word.endswith("ily"):
        return word[:-3] + "y"
    if word.endswith("ly") and len(word) > 5:
        return _short(word[:-2])
    if word.endswith(("ies", "ied")) and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us")) and len(word) > 3:
        word = word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) > 2:
            return _short(word[: -len(ending)])
    return _short(word)


def _short(word: str) -> str:
    """Without a doubled last letter or a silent e."""
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
        return word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


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
    index = _index()
    asked = frozenset(stems(words))
    weight = sum(_weight(index, stem) for stem in asked)
    heard = {place for stem in asked if stem not in LIGHT for place in index.holders.get(stem, ())}
    best = 0.0
    found = 0
    for place in sorted(heard):
        other, other_weight, row = index.asked[place]
        shared = sum(index.weights[stem] for stem in asked & other)
        pooled = sum(index.weights[stem] for stem in asked & index.pools[row])
        score = (1 - _POOL) * 2 * shared / (weight + other_weight) + _POOL * pooled / weight
        if score > best + 1e-9:
            best = score
            found = index.yes[row]
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
