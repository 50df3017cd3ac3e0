"""The topic of a question to a resident of a city, whatever its words."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from lmrl.envs.guess_city.cities import (
    City,
    Places,
    Topic,
    cities,
    phrases_in,
    places_in,
    plain_words,
    stemmed_words,
    topics,
)

__all__ = [
    "Reading",
    "content",
    "fact_words",
    "facts",
    "keywords",
    "others",
    "phrases",
    "read_question",
    "values_in",
    "vocabulary",
]

_NOTHING = frozenset(
    "a an the of and or in on at by to with from for it is are was were be been has had have do did you there that "
    "this who where when all both city country my our his her its their name once until almost without under "
    "between above below along around through over after before like same own lay saw held long good great big old "
    "new large small very much many most fine other every everywhere some any first no not near lot people then as "
    "live life one main world called start".split()
)


@lru_cache(maxsize=1 << 12)
def fact_words(city: City, topic: Topic) -> frozenset[str]:
    """The words, without their endings, of all that is true of a city in a topic; of synonyms the usual one."""
    words = (word for value in city.every(topic.name) for word in stemmed_words(value))
    return frozenset(others()[topic.name].get(word, word) for word in words)


@lru_cache(maxsize=1)
def keywords() -> Mapping[str, frozenset[tuple[str, ...]]]:
    """By topic, what shows that a question is about it."""
    return {topic.name: frozenset(stemmed_words(keyword) for keyword in topic.keywords) for topic in topics()}


@lru_cache(maxsize=1)
def phrases() -> Mapping[str, Mapping[tuple[str, ...], frozenset[str]]]:
    """By topic, from words to the facts that they mean."""
    meant: dict[str, dict[tuple[str, ...], frozenset[str]]] = {}
    for topic in topics():
        values = {value for city in cities() for value in city.every(topic.name)}
        pairs = [(stemmed_words(text), value) for value in values for text in _forms(topic, value)]
        pairs += [(stemmed_words(text), value) for text, value in topic.synonyms if topic.closed]
        own = meant.setdefault(topic.name, {})
        for phrase, value in pairs:
            own[phrase] = own.get(phrase, frozenset()) | {value}
    return meant


def _forms(topic: Topic, value: str) -> set[str]:
    """The fact itself without its article, and what is left of it when words are dropped that say nothing."""
    bare = value.removeprefix("the ").removeprefix("a ").removeprefix("an ")
    if not topic.closed:
        return {bare}
    short = bare
    for ending in (" letters", " characters", " Ocean", " Sea", " River", " people"):
        short = short.removesuffix(ending)
    parts = {*short.split(" and ")} if topic.name in ("language", "script", "sea") else {short}
    return {bare} | {part.removeprefix("the ") for part in parts if part.lower() not in ("chinese", "")}


@lru_cache(maxsize=1)
def facts() -> Mapping[str, frozenset[str]]:
    """By topic, what is true somewhere; general terms ("the sea") are no answer to which one."""
    return {t.name: frozenset(value for city in cities() for value in city.facts[t.name]) for t in topics()}


@lru_cache(maxsize=1)
def content() -> Mapping[str, frozenset[str]]:
    """By topic, all words of its facts that say something."""
    words = {topic.name: {word for city in cities() for word in fact_words(city, topic)} for topic in topics()}
    return {name: frozenset(found - _NOTHING) for name, found in words.items()}


@lru_cache(maxsize=1)
def others() -> Mapping[str, Mapping[str, str]]:
    """By open topic, from words to those that its facts have in their place."""
    return {topic.name: dict(topic.synonyms) for topic in topics()}


@lru_cache(maxsize=1)
def vocabulary() -> frozenset[str]:
    """Every word of every fact and every word for a topic."""
    facts = {word for topic in topics() for city in cities() for word in fact_words(city, topic)}
    return frozenset(
        facts | {word for topic in topics() for keyword in topic.keywords for word in stemmed_words(keyword)}
    )


_ASKING = frozenset("what which where how who when why tell describe name say explain".split())
_TELLING = frozenset("tell describe name say explain what which how".split())
_VERBS = frozenset("is are am was were do does did can could will would has have had".split())
_GENERAL = frozenset("know known famous special popular interesting proud best about describe like unique".split())
_NAMES = frozenset("name called spell spelled begin start initial rhyme anagram vowel syllable".split())
_KEYWORD = 2
_VALUE = 3
"""Weights of a word that names a topic, and of one that names a fact of a topic in which facts exclude each other."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A question understood."""

    words: tuple[str, ...]
    places: Places
    yes_no: bool
    """It can be answered by yes or no."""
    full: bool
    """It has "or" or "not", so that yes and no would say little."""
    topic: Topic | None
    """What it is about; None: nothing we know about, or only places."""
    mentions: frozenset[str] = frozenset()
    """Facts of the topic that it names: whole ones if the topic is closed, else single words of them."""
    general: bool = False
    """It asks for anything that is interesting."""
    name: bool = False
    """It asks for the name of the city or the country, or for its letters."""
    strange: bool = False
    """It names something by a word with a capital that stands in no table."""

    @property
    def about_country(self) -> bool:
        """It names countries, and not to ask for neighbors."""
        return bool(self.places.countries) and (self.topic is None or self.topic.name != "neighbors")


@lru_cache(maxsize=1 << 16)
def read_question(question: str) -> Reading:
    """Understand a question by the words in it: those that name topics, and those that name facts."""
    plain = plain_words(question)
    words = stemmed_words(question)
    topic, mentions = _best_topic(words)
    asked = {*words}
    return Reading(
        words=words,
        places=places_in(question),
        yes_no=_is_yes_no(plain),
        full=bool(asked & {"or", "not", "outside"}),
        topic=topic,
        mentions=mentions,
        strange=_strange(question),
        general=topic is None and bool(asked & _GENERAL),
        name=_asks_letters(asked) or (topic is None and _asks_name(asked, words)),
    )


@lru_cache(maxsize=1 << 16)
def values_in(text: str, topic: Topic) -> frozenset[str]:
    """The facts of a topic that a text names in full; of two that overlap, the longer one."""
    return _phrases_in(stemmed_words(text), phrases()[topic.name])


def _is_yes_no(plain: tuple[str, ...]) -> bool:
    """So is "Is it big?", and "Big?", but not "Which is big?" or "Can you tell me how big it is?"."""
    asking = _ASKING & {*plain}
    return bool(plain) and (not asking or (plain[0] in _VERBS and not asking & _TELLING))


def _asks_letters(asked: set[str]) -> bool:
    return "letter" in asked and bool(asked & {"begin", "start", "first", "last", "name", "many"})


def _asks_name(asked: set[str], words: tuple[str, ...]) -> bool:
    """Such as "What is it called?" or "Which country is it in?"."""
    return bool(asked & _NAMES) or any(a in ("what", "which") and b in ("city", "country") for a, b in pairwise(words))


def _strange(question: str) -> bool:
    proper = [word for word in question.split()[1:] if word[:1].isupper() and word.strip("?.,!") != "I"]
    return any(stem not in vocabulary() for word in proper for stem in stemmed_words(word))


def _best_topic(words: tuple[str, ...]) -> tuple[Topic | None, frozenset[str]]:
    best: tuple[Topic | None, frozenset[str]] = (None, frozenset())
    most = 0
    for topic in topics():
        score = _KEYWORD * _length(words, keywords()[topic.name])
        if topic.closed:
            mentions = _phrases_in(words, phrases()[topic.name]) & facts()[topic.name]
            score += _VALUE * _length(words, phrases()[topic.name])
            # Most countries are the neighbors of another: to name one says nothing yet.
            score *= topic.name != "neighbors" or bool(_length(words, keywords()[topic.name]))
        else:
            mentions = frozenset(others()[topic.name].get(word, word) for word in words) & content()[topic.name]
            score += len(mentions)
        if score > most:
            best = (topic, mentions)
            most = score
    return best


def _phrases_in(words: tuple[str, ...], phrases: Mapping[tuple[str, ...], frozenset[str]]) -> frozenset[str]:
    found: set[str] = set()
    for phrase in phrases_in(words, phrases):
        found |= phrases[phrase]
    return frozenset(found)


def _length(words: tuple[str, ...], phrases: Container[tuple[str, ...]]) -> int:
    """How many of the words belong to one of the phrases."""
    return sum(map(len, phrases_in(words, phrases)))
