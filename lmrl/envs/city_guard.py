"""Who lives in the city must not say which it is: what is a guess, and which answers tell too much."""

from collections.abc import Sequence
from functools import lru_cache

from lmrl.envs.cities import City, city_named, country_names
from lmrl.envs.city_names import places_in
from lmrl.envs.city_words import plain_words

__all__ = ["REFUSALS", "guarded", "guessed", "leaks"]

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
    """Whether a text names the city, or (unless that is known) its country.

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
