"""The words by which topics and facts are recognized, as tables; a phrase is a tuple of words without their endings."""

from collections.abc import Mapping
from functools import lru_cache

from lmrl.envs.cities import City, Topic, cities, topics
from lmrl.envs.city_words import stemmed_words

__all__ = ["content", "fact_words", "facts", "keywords", "others", "phrases", "vocabulary"]

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
