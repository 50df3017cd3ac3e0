"""The scripted partner of Guess My City: it lives in the city, answers truthfully, and keeps the name to itself."""

from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import Any

from lmrl.envs.guess_city.cities import City, Topic, city_named, country_names, places_in, plain_words, topics
from lmrl.envs.guess_city.reading import Reading, fact_words, read_question
from lmrl.errors import UserError
from lmrl.types import PartnerRequest

__all__ = ["PHRASES", "REFUSALS", "ScriptedResident", "guarded", "guessed", "leaks", "truth"]

_BIG = ("big", "large", "huge", "megacity", "populou")
_SMALL = ("small", "little", "tiny")
_MORE = ("more", "over", "above", "least", "exceed", "exceeding")
_LESS = ("less", "fewer", "under", "below", "most")
_RANGES = {"less": (0, 2), "two": (2, 5), "five": (5, 10), "more": (10, 50)}
"""Millions of people, by the first word of what the table says."""
_NUMBERS = dict(
    zip("one two three four five six seven eight nine ten twenty".split(), [*range(1, 11), 20], strict=True)
)


def truth(city: City, reading: Reading) -> bool | None:
    """Yes, no, or None where one of them would say too little or too much.

    A question about countries is about where the city is, unless it is about neighbors.
    """
    topic = reading.topic
    if not reading.yes_no or reading.full:
        return None
    if reading.about_country:
        return _in_country(city, reading)
    if topic is None:
        return None
    values = city.facts[topic.name]
    if topic.name == "size":
        return _size(values[0], reading.words)
    if reading.mentions:
        return bool(reading.mentions & {*values} if topic.closed else reading.mentions <= fact_words(city, topic))
    if topic.name == "capital":
        return values == ("a national capital",)
    if topic.name in ("sea", "river"):
        there = any("lake" not in value for value in values) and not reading.strange
        return there != bool({"inland", "landlocked", "far"} & {*reading.words})
    return None


def _in_country(city: City, reading: Reading) -> bool | None:
    if len(reading.places.countries) > 1:
        return None
    (meant,) = reading.places.countries
    return None if city.disputed in meant else city.country in meant


def _size(value: str, words: tuple[str, ...]) -> bool | None:
    """Numbers of millions compared with the range in the table; "big" is from five, "small" below two."""
    least, most = _RANGES[value.split()[0]]
    numbers = [int(word) if word.isdigit() else _NUMBERS.get(word, 0) for word in words]
    found = [number for number in numbers if 0 < number < 100]
    if "million" in words and len(found) == 1:
        more, less = (any(word in signs for word in words) for signs in (_MORE, _LESS))
        if more == less:
            return None
        sure_more = least >= found[0]
        sure_less = most <= found[0]
        return None if sure_more == sure_less else sure_more == more
    if any(word in _BIG for word in words):
        return least >= 5
    return most <= 2 if any(word in _SMALL for word in words) else None


REFUSALS = ("I must not tell you that.", "That would be too easy.", "I keep that to myself.")
"""What is said in place of an answer that tells too much."""
_COMPARING = frozenset(
    "or nor not near nearer nearest close closer next than like unlike far between bigger larger smaller older "
    "north south east west".split()
)
_PREFIX = 5
"""Names of so many letters also must not begin a word: "Parisian" tells as much as "Paris"."""
_LANGUAGES = frozenset({"cantonese"})


@lru_cache(maxsize=1 << 16)
def guessed(question: str) -> str:
    """The city that a question guesses, by its name of today; "" if it guesses none.

    A guess names one of the hundred, by any of its names and as whole words; it names no other of them; and it has no
    word that compares or chooses ("near", "than", "or", "not", ...). The country may follow: "Is it Lima, Peru?".
    """
    named = [*places_in(question).cities]
    if len(named) != 1 or _COMPARING & {*_without_country(plain_words(question), city_named(named[0]))}:
        return ""
    return named[0]


@lru_cache(maxsize=1 << 16)
def leaks(text: str, city: City, country_too: bool = True) -> bool:
    """Return whether a text names the city, or (unless that is known) its country.

    A name also counts where its letters are spread over several words ("T o k y o") and, for a city's name from five
    letters, where a word begins with it ("Parisian"). Names of peoples and languages are no names of countries.
    """
    words = plain_words(text)
    named = places_in(text)
    if city.name in named.cities or (country_too and any(city.country in meant for meant in named.countries)):
        return True
    names = _squeezed(city.names)
    if any(word.startswith(name) for name in names if len(name) >= _PREFIX for word in {*words} - _LANGUAGES):
        return True
    return _spread(words, names | _squeezed(country_names()[city.country]) if country_too else names)


def guarded(reply: str, city: City, heard: Sequence[str]) -> str:
    """The reply, or one of `REFUSALS` where it leaks. The country is known once a question named it and no other."""
    known = any(places_in(question).countries == {frozenset({city.country})} for question in heard)
    return REFUSALS[len(heard) % len(REFUSALS)] if leaks(reply, city, not known) else reply


def _without_country(words: tuple[str, ...], city: City) -> tuple[str, ...]:
    """The words but for those of the names of its country: "north" in "North Korea" compares nothing."""
    for name in country_names()[city.country]:
        named = plain_words(name)
        for place in range(len(words) - len(named) + 1):
            if words[place : place + len(named)] == named:
                words = words[:place] + words[place + len(named) :]
                break
    return words


@lru_cache(maxsize=256)
def _squeezed(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset("".join(plain_words(name)) for name in names)


def _spread(words: tuple[str, ...], names: frozenset[str]) -> bool:
    """Whether several words in a row, written together, are one of the names."""
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
_HARDLY = ("Not especially.", "Not that I know.")
"""For what may be true though we are not known for it."""
_WRONG_CITY = ("No, I live elsewhere.", "No, it is another city.", "No, wrong city.")
_UNSURE = ("I am not sure.", "That is hard to say.", "I do not know that.")
_ONE_AT_A_TIME = "One place at a time, please."
_DISPUTED = "That is disputed."
PHRASES = (*_YES, *_NO, *_HARDLY, *_WRONG_CITY, *_UNSURE, _ONE_AT_A_TIME, _DISPUTED, *REFUSALS)
"""What it says whatever the city."""
_GENERAL = ("food", "landmark", "culture", "industry", "history")
_MAIN = ("language",)
"""Closed topics in which the table has the main thing only."""


class ScriptedResident:
    """A partner without weights: the same words for the same request.

    Questions are understood by the words in them, in any phrasing. Each fact is one of several short sentences;
    the seed and the number of questions choose which. Questions about unknown facts get an evasive answer.

    Args:
        noise: probability of an evasive answer to a question that has a better one. It never says what is false.
        candor: probability that it tells about a topic in detail ("pad thai") where it has general terms ("noodles");
            drawn once for an episode and topic, so that asking again does not help.

    Raises:
        UserError: for ``noise`` or ``candor`` that is no probability.
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
        return {"name": "scripted resident", "version": 1, "noise": self.noise, "candor": self.candor}

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
        said = truth(city, reading)
        if said is not None:
            return _by_yes_or_no(city, reading, said, chance)
        if reading.about_country:
            return _DISPUTED if len(reading.places.countries) == 1 and city.disputed else _ONE_AT_A_TIME
        topic = reading.topic
        if topic is None and reading.general:
            name = chance.choice(_GENERAL)
            topic = next(topic for topic in topics() if topic.name == name)
        if topic is None:
            return _HARDLY[-1] if reading.strange and reading.yes_no else chance.choice(_UNSURE)
        candid = self.candor > 0 and Random(f"candid {seed} {topic.name}").random() < self.candor
        return _sentence(topic, (city.facts if candid else city.general)[topic.name], chance)


def _about_names(city: City, question: str, reading: Reading, chance: Random) -> str:
    """The answer to a question that names cities or asks for names; "" to any other."""
    if len(reading.places.cities) > 1:
        return _ONE_AT_A_TIME
    guess = guessed(question)
    if guess:
        return chance.choice(_YES if guess == city.name else _WRONG_CITY)
    if reading.places.cities:  # "Is it near Rome?": the answer must not depend on whether it is Rome
        return chance.choice(_UNSURE)
    return chance.choice(REFUSALS) if reading.name else ""


def _by_yes_or_no(city: City, reading: Reading, said: bool, chance: Random) -> str:
    topic = reading.topic
    if topic is not None and topic.name == "capital" and not reading.about_country:
        return f"{'Yes' if said else 'No'}, it is {city.facts['capital'][0]}."
    soft = topic is not None and (not topic.closed or topic.name in _MAIN) and not reading.about_country
    return chance.choice(_YES if said else _HARDLY if soft else _NO)


def _sentence(topic: Topic, values: tuple[str, ...], chance: Random) -> str:
    if not values:
        return chance.choice(topic.without)
    text = chance.choice(topic.sentences).format(chance.choice(values))
    return text[0].upper() + text[1:]
