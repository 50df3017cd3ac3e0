"""Find the topic of a question to a resident of a city, in any wording."""

import re
from collections import defaultdict
from collections.abc import Container, Mapping, Set
from dataclasses import dataclass
from functools import lru_cache

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

__all__ = ["Reading", "fact_words", "read_question", "values_in"]

# Words in facts that are no sign of a topic.
_NOTHING = frozenset(
    "a an the of and or in on at by to with from for it is are was were be been has had have do did you there that "
    "this who where when all both city country my our his her its their name once until almost without under "
    "between above below along around through over after before like same own lay saw held long good great big old "
    "new large small very much many most fine other every everywhere some any first no not near lot people then as "
    "live life one main world called start".split()
)


@lru_cache(maxsize=1 << 12)
def fact_words(city: City, topic: Topic) -> frozenset[str]:
    """Return the stemmed words of a city's facts and general terms in a topic; each synonym becomes the usual word."""
    usual = dict(topic.synonyms)
    words: set[str] = set()
    for value in city.every(topic.name):
        words.update(stemmed_words(value))
    return frozenset(usual.get(word, word) for word in words)


@dataclass(frozen=True, eq=False)
class _Vocabulary:
    """The words by which questions refer to a topic."""

    keywords: frozenset[tuple[str, ...]]
    facts: Set[str]
    """Facts of any city. General terms ("the sea") are not among them: they don't say which one."""
    phrases: Mapping[tuple[str, ...], Set[str]]
    """The facts and general terms that a phrase of a question means."""
    answers: Mapping[tuple[str, ...], Set[str]]
    """The same for an answer, in which a fact is no synonym of another one."""
    words: Set[str]
    """All words of facts and general terms."""


@lru_cache(maxsize=1)
def _vocabularies() -> Mapping[str, _Vocabulary]:
    """Return the vocabulary of each topic."""
    vocabularies = {}
    for topic in topics():
        facts: set[str] = set()
        values: set[str] = set()
        words: set[str] = set()
        for city in cities():
            facts.update(city.facts[topic.name])
            values.update(city.every(topic.name))
            words |= fact_words(city, topic)
        phrases: dict[tuple[str, ...], set[str]] = defaultdict(set)
        for value in values:
            for form in _forms(topic, value):
                phrases[stemmed_words(form)].add(value)
        answers = {phrase: frozenset(meant) for phrase, meant in phrases.items()}
        # In a closed topic synonyms stand for facts, in an open one for single words.
        if topic.closed:
            for text, value in topic.synonyms:
                phrases[stemmed_words(text)].add(value)
        keywords = frozenset(map(stemmed_words, topic.keywords))
        vocabularies[topic.name] = _Vocabulary(keywords, facts, phrases, {**phrases, **answers}, words)
    return vocabularies


def _forms(topic: Topic, value: str) -> set[str]:
    """Return the wordings of a fact: without its article and, in a closed topic, without words that add nothing."""
    bare = value.removeprefix("the ").removeprefix("a ").removeprefix("an ")
    if not topic.closed:
        return {bare}
    short = bare
    for ending in (" letters", " characters", " Ocean", " Sea", " River", " people"):
        short = short.removesuffix(ending)
    forms = {bare}
    # "Mandarin and Cantonese" are two languages, but "rock and roll" is one thing.
    for part in short.split(" and ") if topic.name in ("language", "script", "sea") else [short]:
        if part.lower() not in ("chinese", ""):
            forms.add(part.removeprefix("the "))
    return forms


@lru_cache(maxsize=1)
def _known_words() -> frozenset[str]:
    """Return all words of facts and keywords."""
    known: set[str] = set()
    for vocabulary in _vocabularies().values():
        known |= vocabulary.words
        known = known.union(*vocabulary.keywords)
    return frozenset(known)


_ASKING = frozenset("what which where how who when why tell describe name say explain".split())
_TELLING = frozenset("tell describe name say explain what which how".split())
_VERBS = frozenset("is are am was were do does did can could will would has have had".split())
_GENERAL = frozenset("know known famous special popular interesting proud best about describe like unique".split())
# Words of a question that only asks whether the city is in a country, or is its capital.
_WHERE = frozenset(
    "is it s are you do does can could would be from come in inside within of to the a an that this your city town "
    "place home hometown capital country nation national live located situated found lie belong part somewhere where "
    "or and not so then ok maybe perhaps possibly".split()
)
_NAMES = frozenset("name called spell spelled begin start initial rhyme anagram vowel syllable".split())
_WHICH_NAME = re.compile(r"\b(?:what|which) (?:city|country)\b")
_KEYWORD = 2  # weight of a word that names a topic
_VALUE = 3  # weight of a word that names a fact of a closed topic; words of other facts have weight 1


@dataclass(frozen=True, slots=True)
class Reading:
    """The content of a question."""

    words: tuple[str, ...]
    places: Places
    yes_no: bool
    """Whether the answer can be yes or no."""
    full: bool
    """Whether it contains "or" or "not", so that yes and no would be ambiguous."""
    topic: Topic | None
    """None if it is about an unknown topic, or only about places."""
    mentions: frozenset[str] = frozenset()
    """Facts of the topic in the question: whole facts if the topic is closed, else single words of facts."""
    general: bool = False
    """Whether it asks for anything interesting."""
    name: bool = False
    """Whether it asks for the name of the city or the country, or for its letters."""
    strange: bool = False
    """Whether it contains a capitalised word that is in no table; about a sea or river, one of no fact or keyword."""

    @property
    def about_country(self) -> bool:
        """Whether it asks if the city is in a country, or is its capital, and nothing else ("northern China")."""
        return bool(self.places.countries) and self.places.others <= _WHERE


@lru_cache(maxsize=1 << 16)
def read_question(question: str) -> Reading:
    """Understand a question by the words in it that name topics and facts."""
    plain = plain_words(question)
    words = stemmed_words(question)
    topic, mentions = _best_topic(words)
    asked = {*words}
    # "Is it big?" and "Big?" ask for yes or no; "Which is big?" and "Can you tell me how big it is?" don't.
    asking = _ASKING.intersection(plain)
    yes_no = bool(plain) and (not asking or (plain[0] in _VERBS and not asking & _TELLING))
    # "What is it called?", "Which country is it in?"
    asks_name = bool(asked & _NAMES) or _WHICH_NAME.search(" ".join(words)) is not None
    asks_letters = "letter" in asked and bool(asked & {"begin", "start", "first", "last", "name", "many"})
    return Reading(
        words=words,
        places=places_in(question),
        yes_no=yes_no,
        full=bool(asked & {"or", "not", "outside"}),
        topic=topic,
        mentions=mentions,
        strange=_strange(question, topic),
        general=topic is None and bool(asked & _GENERAL),
        name=asks_letters or (topic is None and asks_name),
    )


@lru_cache(maxsize=1 << 16)
def values_in(text: str, topic: Topic) -> frozenset[str]:
    """Return the facts of a topic that a text names in full; of two that overlap, the longer one."""
    return _meant(stemmed_words(text), _vocabularies()[topic.name].answers)


def _strange(question: str, topic: Topic | None) -> bool:
    known: Set[str] = _known_words()
    if topic is not None and topic.name in ("sea", "river"):
        # These have names of ordinary words ("the Red Sea"). Only the words that show the topic are known.
        vocabulary = _vocabularies()[topic.name]
        words = stemmed_words(question)
        known = _NOTHING.union(*phrases_in(words, vocabulary.keywords), *phrases_in(words, vocabulary.phrases))
    # The first word has a capital anyway.
    for word in question.split()[1:]:
        if word[:1].isupper() and word.strip("?.,!") != "I" and not known >= {*stemmed_words(word)}:
            return True
    return False


def _best_topic(words: tuple[str, ...]) -> tuple[Topic | None, frozenset[str]]:
    """Return the topic with the highest score, and the facts of it in the question."""
    best: tuple[Topic | None, frozenset[str]] = (None, frozenset())
    highest = 0
    for topic in topics():
        vocabulary = _vocabularies()[topic.name]
        about = _length(words, vocabulary.keywords)
        score = _KEYWORD * about
        if topic.closed:
            mentions = _meant(words, vocabulary.phrases) & vocabulary.facts
            score += _VALUE * _length(words, vocabulary.phrases)
            # Most countries are neighbors of another one, so the name of a country does not suffice.
            if topic.name == "neighbors" and not about:
                score = 0
        else:
            usual = dict(topic.synonyms)
            mentions = frozenset(usual.get(word, word) for word in words) & vocabulary.words
            mentions -= _NOTHING
            score += len(mentions)
        if score > highest:
            best = (topic, mentions)
            highest = score
    return best


def _meant(words: tuple[str, ...], phrases: Mapping[tuple[str, ...], Set[str]]) -> frozenset[str]:
    """Return the facts and general terms that the phrases in a text mean."""
    found: set[str] = set()
    for phrase in phrases_in(words, phrases):
        found |= phrases[phrase]
    return frozenset(found)


def _length(words: tuple[str, ...], phrases: Container[tuple[str, ...]]) -> int:
    """Return the number of words that belong to one of the phrases."""
    return sum(map(len, phrases_in(words, phrases)))
