"""The scripted partner of Guess My City, which answers truthfully and does not reveal the name of its city."""

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

from lmrl.envs.guess_city.cities import City, city_named, country_names, places_in, plain_words, topics
from lmrl.envs.guess_city.reading import Reading, fact_words, read_question
from lmrl.errors import UserError
from lmrl.types import PartnerRequest

__all__ = ["PHRASES", "REFUSALS", "ScriptedResident", "guarded", "guessed", "leaks", "truth"]

# Words about size, without their endings ("populous" loses its s like a plural).
_BIG = frozenset({"big", "large", "huge", "megacity", "populou"})
_SMALL = frozenset({"small", "little", "tiny"})
_MORE = frozenset({"more", "over", "above", "least", "exceed", "exceeding"})
_LESS = frozenset({"less", "fewer", "under", "below", "most"})
# Millions of people, by the first word of the fact in the table.
_RANGES = {"less": (0, 2), "two": (2, 5), "five": (5, 10), "more": (10, 50)}
_NUMBERS = dict(
    zip("one two three four five six seven eight nine ten twenty".split(), [*range(1, 11), 20], strict=True)
)
_NATIONAL = ("a national capital",)


def truth(city: City, reading: Reading) -> bool | None:
    """Return the answer to a yes-or-no question; None if neither is right or either would reveal too much.

    The name of a country asks for the location of the city or for its neighbors. In other questions that name one,
    the table does not tell what is true ("Is it in northern China?", "Was it a colony of Spain?").
    """
    topic = reading.topic
    if not reading.yes_no or reading.full:
        return None
    if reading.about_country:
        if len(reading.places.countries) > 1:
            return None
        (meant,) = reading.places.countries
        if city.disputed in meant:
            return None
        return city.country in meant and ("capital" not in reading.words or city.facts["capital"] == _NATIONAL)
    if topic is None or (reading.places.countries and topic.name != "neighbors"):
        return None
    values = city.facts[topic.name]
    if topic.name == "size":
        return _size(values[0], reading.words)
    if reading.mentions:
        # One right fact suffices in a closed topic; in an open one every word must be right.
        return bool(reading.mentions & {*values} if topic.closed else reading.mentions <= fact_words(city, topic))
    if topic.name == "capital":
        return values == _NATIONAL
    if topic.name in ("sea", "river"):
        # "Is it by the sea?", without a name of the table.
        asks_lake = "lake" in reading.words
        exists = any(("lake" in value) == asks_lake for value in values)
        # The table does not have every lake, and a strange name may be another one of the city's own sea or river.
        if (asks_lake and not exists) or (reading.strange and values):
            return None
        return exists != bool({"inland", "landlocked", "far"} & {*reading.words})
    return None


def _size(value: str, words: tuple[str, ...]) -> bool | None:
    """Compare a number of millions with the range in the table; "big" means at least five, "small" at most two."""
    least, most = _RANGES[value.split()[0]]
    numbers = []
    for word in words:
        number = int(word) if word.isdigit() else _NUMBERS.get(word, 0)
        if 0 < number < 100:
            numbers.append(number)
    if "million" in words and len(numbers) == 1:
        asks_more = not _MORE.isdisjoint(words)
        asks_less = not _LESS.isdisjoint(words)
        is_more = least >= numbers[0]
        is_less = most <= numbers[0]
        # No answer if the question is unclear, or if the number lies inside the range.
        return None if asks_more == asks_less or is_more == is_less else is_more == asks_more
    if not _BIG.isdisjoint(words):
        return least >= 5
    return None if _SMALL.isdisjoint(words) else most <= 2


REFUSALS = ("I must not tell you that.", "That would be too easy.", "I keep that to myself.")
"""Replies in place of an answer that reveals too much."""
_COMPARING = frozenset(
    "or nor not near nearer nearest close closer next than like unlike far between bigger larger smaller older "
    "north south east west".split()
)
_PREFIX = 5  # names from this length on must not begin a word either: "Parisian" reveals as much as "Paris"
_LANGUAGES = frozenset({"cantonese"})  # may begin with the name of a city (Canton)


@lru_cache(maxsize=1 << 16)
def guessed(question: str) -> str:
    """Return today's name of the city that a question guesses; "" if it is no guess.

    A guess contains exactly one of the hundred cities, by any of its names, and no word that compares or chooses
    ("near", "than", "or", "not", ...). The country may follow: "Is it Lima, Peru?".
    """
    named = [*places_in(question).cities]
    if len(named) != 1 or _COMPARING & {*_without_country(plain_words(question), city_named(named[0]))}:
        return ""
    return named[0]


@lru_cache(maxsize=1 << 16)
def leaks(text: str, city: City, country_too: bool = True) -> bool:
    """Whether a text contains the name of the city or, if ``country_too``, of its country.

    A name also counts if its letters are spread over several words ("T o k y o"). So does a word that begins with a
    city's name of at least five letters ("Parisian"). Names of peoples and languages are no names of countries.
    """
    words = plain_words(text)
    named = places_in(text)
    if city.name in named.cities or (country_too and city.country in frozenset().union(*named.countries)):
        return True
    names = _squeezed(city.names)
    for name in names:
        if len(name) >= _PREFIX and any(word.startswith(name) for word in {*words} - _LANGUAGES):
            return True
    return _spread(words, names | _squeezed(country_names()[city.country]) if country_too else names)


def guarded(reply: str, city: City, heard: Sequence[str]) -> str:
    """Return the reply, or one of `REFUSALS` if it leaks.

    The country may be named after a question that names it and no other country.
    """
    known = any(places_in(question).countries == {frozenset({city.country})} for question in heard)
    return REFUSALS[len(heard) % len(REFUSALS)] if leaks(reply, city, not known) else reply


def _without_country(words: tuple[str, ...], city: City) -> tuple[str, ...]:
    """Remove the names of the city's country: "north" in "North Korea" compares nothing."""
    for name in country_names()[city.country]:
        named = plain_words(name)
        for start in range(len(words) - len(named) + 1):
            end = start + len(named)
            if words[start:end] == named:
                words = words[:start] + words[end:]
                break
    return words


@lru_cache(maxsize=256)
def _squeezed(names: tuple[str, ...]) -> frozenset[str]:
    """Return names in plain letters without spaces."""
    return frozenset("".join(plain_words(name)) for name in names)


def _spread(words: tuple[str, ...], names: frozenset[str]) -> bool:
    """Whether several words in a row form one of the names."""
    longest = max(map(len, names))
    for first in range(len(words)):
        together = words[first]
        for word in words[first + 1 :]:
            together += word
            if together in names and len(together) >= _PREFIX:
                return True
            if len(together) > longest:
                break
    return False


_YES = ("Yes.", "Yes, that is true.", "Yes, you are right.")
_NO = ("No.", "No, that is wrong.", "No, it is not so.")
_HARDLY = ("Not especially.", "Not that I know.")  # the table does not list it, but it may be true
_WRONG_CITY = ("No, I live elsewhere.", "No, it is another city.", "No, wrong city.")
_UNSURE = ("I am not sure.", "That is hard to say.", "I do not know that.")
_ONE_AT_A_TIME = "One place at a time, please."
_DISPUTED = "That is disputed."
PHRASES = (*_YES, *_NO, *_HARDLY, *_WRONG_CITY, *_UNSURE, _ONE_AT_A_TIME, _DISPUTED, *REFUSALS)
"""All replies that do not depend on the city."""
_GENERAL = ("food", "landmark", "culture", "industry", "history")  # topics of a general question
_MAIN = ("language",)  # closed topics in which the table has only the main fact


class ScriptedResident:
    """A partner without a model; the same request always gets the same answer.

    It understands questions by their words, in any phrasing. Each fact has several short sentences, of which the seed
    and the number of questions choose one. Questions about unknown facts get an evasive answer.

    Args:
        noise: probability of an evasive answer to a question that has a better one. No answer is ever false.
        candor: probability of a detailed answer ("pad thai") where there are general terms ("noodles"); drawn once per
            episode and topic, so that asking again does not help.

    Raises:
        UserError: if ``noise`` or ``candor`` is not in [0, 1].
    """

    def __init__(self, noise: float = 0.0, candor: float = 0.1) -> None:
        for name, share in (("noise", noise), ("candor", candor)):
            if not 0 <= share <= 1:
                raise UserError(f"{name} must be from 0 to 1, got {share}")
        self.noise = float(noise)
        self.candor = float(candor)

    def reply(self, requests: Sequence[PartnerRequest]) -> list[str]:
        """One line for each request."""
        return [self._reply(request) for request in requests]

    def describe(self) -> dict[str, Any]:
        """Name, version and settings."""
        return {"name": "scripted resident", "version": 2, "noise": self.noise, "candor": self.candor}

    def _reply(self, request: PartnerRequest) -> str:
        chance = Random(f"resident {request.seed} {len(request.heard)}")
        if self.noise and chance.random() < self.noise:
            return chance.choice(_UNSURE) + "\n"
        question = request.heard[-1]
        city = city_named(request.facts["city"])
        reading = read_question(question)
        text = _about_names(city, question, reading, chance) or self._fact(city, reading, chance, request.seed)
        return text + "\n"

    def _fact(self, city: City, reading: Reading, chance: Random, seed: int) -> str:
        is_true = truth(city, reading)
        if is_true is not None:
            return _by_yes_or_no(city, reading, is_true, chance)
        if reading.about_country and len(reading.places.countries) > 1:
            return _ONE_AT_A_TIME
        if reading.about_country and city.disputed in frozenset().union(*reading.places.countries):
            return _DISPUTED
        topic = reading.topic
        if topic is None and reading.general:
            name = chance.choice(_GENERAL)
            topic = next(topic for topic in topics() if topic.name == name)
        if topic is None:
            return _HARDLY[-1] if reading.strange and reading.yes_no else chance.choice(_UNSURE)
        # A generator of its own: the decision holds for all questions on the topic in this episode.
        candid = self.candor > 0 and Random(f"candid {seed} {topic.name}").random() < self.candor
        values = (city.facts if candid else city.general)[topic.name]
        if not values:
            return chance.choice(topic.without)
        text = chance.choice(topic.sentences).format(chance.choice(values))
        return text[0].upper() + text[1:]


def _about_names(city: City, question: str, reading: Reading, chance: Random) -> str:
    """Answer a question that names cities or asks for names; return "" for any other."""
    if len(reading.places.cities) > 1:
        return _ONE_AT_A_TIME
    guess = guessed(question)
    if guess:
        return chance.choice(_YES if guess == city.name else _WRONG_CITY)
    if reading.places.cities:  # "Is it near Rome?": the answer must not depend on whether it is Rome
        return chance.choice(_UNSURE)
    return chance.choice(REFUSALS) if reading.name else ""


def _by_yes_or_no(city: City, reading: Reading, is_true: bool, chance: Random) -> str:
    topic = reading.topic
    if topic is not None and topic.name == "capital" and not reading.about_country:
        return f"{'Yes' if is_true else 'No'}, it is {city.facts['capital'][0]}."
    if is_true:
        return chance.choice(_YES)
    # Where the table is not complete, a fact that it does not list may still be true: no hard "no".
    incomplete = topic is not None and (not topic.closed or topic.name in _MAIN) and not reading.about_country
    return chance.choice(_HARDLY if incomplete else _NO)
