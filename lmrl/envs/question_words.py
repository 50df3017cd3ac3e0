"""From a question to its words, and to the stems by which a paraphrase is known."""

import re
from functools import lru_cache
from importlib.resources import files

from lmrl.envs.question_phrases import plainly

__all__ = ["LIGHT", "stems", "words_of"]

_FILE = "twenty_questions_synonyms.tsv"
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
    lines = (files("lmrl") / "assets" / _FILE).read_text(encoding="utf-8").splitlines()[1:]
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
