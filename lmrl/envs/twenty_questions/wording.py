"""Find the property that a question asks for, by its words: normal form, stems, synonyms, closest known phrasing."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lmrl.envs.twenty_questions.objects import properties, rows_of

__all__ = ["LIGHT", "LONGEST", "best_match", "exact_match", "plainly", "sort_match", "stems", "words_of"]

# Replacements that apply in this order: negations and links become "not" and "and", fixed phrases become one word.
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
    """Return a text in lower case with negations, links and fixed phrases in one normal form.

    >>> plainly("isn t it a piece of furniture that is made out of wood")
    'is not it a piece of furniture and it is madeof wood'
    """
    for old, new in _PHRASES:
        text = old.sub(new, text)
    return text


# Longer questions are cut or ignored, so that no text takes long to understand.
_MOST_WORDS = 40
LONGEST = 300
"""Number of characters, without spaces at the ends, above which a question counts as not understood."""

# Stop words, which any question may contain.
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
"""Words of a question's frame: they get a small weight."""

_IRREGULAR = dict(
    pair.split(":")
    for pair in (
        "made:make leaves:leaf knives:knife wolves:wolf women:woman feet:foot mice:mouse children:child glasses:glass "
        "shelves:shelf used:use using:use uses:use having:have found:find seen:see kept:keep contains:contain "
        "filled:fill full:fill includes:include covered:cover comes:come"
    ).split()
)
_WORD = re.compile(r"\d*\.\d+|[a-z0-9]+")  # the point of "1.5" is no end of a word
_UNCHANGED = frozenset("clothes teeth bus gas ring string wing spring red bed reed seed feed brass".split())


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a question in normal form; none if it is too long."""
    if len(text) > LONGEST:
        return ()
    return tuple(plainly(" ".join(_WORD.findall(text.lower()))).split()[:_MOST_WORDS])


def stems(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words that carry meaning, each replaced by its stem or by the head word of its synonyms."""
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
    head_words: dict[str, str] = {}
    for head_word, words in rows_of("synonyms.tsv"):
        for word in words.split():
            head_words[word] = head_word
            head_words[_stem(word)] = head_word
    return head_words


def _stem(word: str) -> str:
    """Remove English endings. The result may not be a word, but all forms of a word have the same."""
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
    """Remove a doubled last letter ("runn") or a silent e."""
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "lsz":
        return word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


_LIGHT = 0.35  # weight of a word in `LIGHT`
# Qualities keep only this share of their weight: they often just qualify another word.
_QUALITIES = frozenset("easy big small tiny long whole red green yellow brown white black blue gray".split())
_QUALITY = 0.6
_UNHEARD = 2.5  # weight of a word in no known question: it shows that the question is about something else
_POOL = 0.3  # share of the score that all phrasings of the property decide together


@dataclass(frozen=True)
class _Index:
    """The known questions, prepared for look-up."""

    exact: Mapping[tuple[str, ...], int]
    """From the words of a question to the objects."""
    questions: Sequence[tuple[frozenset[str], int]]
    """Stems of a question, and the index of its property."""
    named: Mapping[str, int]
    """From the single stem of a question that begins with "Is" to the objects."""
    pools: Sequence[frozenset[str]]
    """All stems in the questions of a property."""
    holders: Mapping[str, Sequence[int]]
    """From a stem to the indices of the questions that contain it."""
    weights: Mapping[str, float]

    def weight(self, of_stems: Iterable[str]) -> float:
        # An exact sum: the order of a set, which differs from process to process, must not decide between equals.
        return math.fsum(self.weights.get(stem, _UNHEARD) for stem in of_stems)


def exact_match(words: tuple[str, ...]) -> int | None:
    """Return the objects for a question with exactly these words; None if the table has no such question."""
    return _index().exact.get(words)


def sort_match(stem: str) -> int | None:
    """Return the objects of a sort or quality that the table asks for by this one word ("Is it furniture?")."""
    return _index().named.get(stem)


def best_match(words: tuple[str, ...]) -> tuple[float, int]:
    """Return how well the best known question fits (0: not at all, 1: same stems), and the objects for that question.

    The score is Dice's coefficient of the two weighted sets of stems, plus a share for how much of the question the
    phrasings of the property cover together.
    """
    index = _index()
    asked = frozenset(stems(words))
    weight = index.weight(asked)
    # Questions that share only words of the frame are no candidates.
    candidates: set[int] = set()
    for stem in asked - LIGHT:
        candidates.update(index.holders.get(stem, ()))
    best = 0.0
    yes = 0
    for number in sorted(candidates):
        known, row = index.questions[number]
        shared = index.weight(asked & known)
        covered = index.weight(asked & index.pools[row])
        score = (1 - _POOL) * 2 * shared / (weight + index.weight(known)) + _POOL * covered / weight
        # The tolerance makes the first of equals win, however the sums are rounded.
        if score > best + 1e-9:
            best = score
            yes = properties()[row].yes
    return best, yes


@lru_cache(maxsize=1)
def _index() -> _Index:
    exact: dict[tuple[str, ...], int] = {}
    named: dict[str, int] = {}
    questions: list[tuple[frozenset[str], int]] = []
    pools: list[frozenset[str]] = []
    holders: dict[str, list[int]] = defaultdict(list)
    spread: Counter[str] = Counter()  # in how many properties a stem occurs
    for row, item in enumerate(properties()):
        pool: set[str] = set()
        for question in item.phrasings:
            words = words_of(question)
            known = stems(words)
            exact[words] = item.yes
            if len(known) == 1 and question.startswith("Is "):
                named.setdefault(known[0], item.yes)
            for stem in set(known):
                holders[stem].append(len(questions))
            questions.append((frozenset(known), row))
            pool.update(known)
        pools.append(frozenset(pool))
        spread.update(pool)
    # Rare stems say more about the property than frequent ones (inverse document frequency).
    weights: dict[str, float] = {}
    for stem, count in spread.items():
        rarity = math.log(1 + len(properties()) / count)
        weights[stem] = _LIGHT if stem in LIGHT else rarity * (_QUALITY if stem in _QUALITIES else 1)
    return _Index(exact, questions, named, pools, holders, weights)
