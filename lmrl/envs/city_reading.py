"""What a question to somebody who lives in a city is about, whatever its words."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from lmrl.envs.cities import Topic, topics
from lmrl.envs.city_names import Places, places_in
from lmrl.envs.city_vocabulary import content, facts, keywords, others, phrases, vocabulary
from lmrl.envs.city_words import phrases_in, plain_words, stemmed_words

__all__ = ["Reading", "read_question", "values_in"]

_ASKING = frozenset("what which where how who when why tell describe name say explain".split())
_TELLING = frozenset("tell describe name say explain what which how".split())
_VERBS = frozenset("is are am was were do does did can could will would has have had".split())
_GENERAL = frozenset("know known famous special popular interesting proud best about describe like unique".split())
_NAMES = frozenset("name called spell spelled begin start initial rhyme anagram vowel syllable".split())
_KEYWORD, _VALUE = 2, 3
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
            best, most = (topic, mentions), score
    return best


def _phrases_in(words: tuple[str, ...], phrases: Mapping[tuple[str, ...], frozenset[str]]) -> frozenset[str]:
    found: set[str] = set()
    for phrase in phrases_in(words, phrases):
        found |= phrases[phrase]
    return frozenset(found)


def _length(words: tuple[str, ...], phrases: Container[tuple[str, ...]]) -> int:
    """How many of the words belong to one of the phrases."""
    return sum(map(len, phrases_in(words, phrases)))
