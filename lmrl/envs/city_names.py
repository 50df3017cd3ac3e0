"""Which cities and countries a text names: whole words, whatever the capitals, accents and hyphens."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from lmrl.envs.cities import cities, country_names
from lmrl.envs.city_words import plain_words

__all__ = ["Places", "places_in"]

# Longer phrases in which a name does not name a city or a country.
_OTHERS = (
    "North America", "South America", "Latin America", "Central America", "Rio de la Plata", "de la", "a la",
    "Peking duck", "Peking opera", "New Mexico", "Gulf of Mexico", "South China Sea", "East China Sea",
    "Santiago de Cuba",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Places:
    """Names of today."""

    cities: frozenset[str]
    """Of the hundred."""
    countries: frozenset[frozenset[str]]
    """For each country named, what it may be: "Korea" may be two. Also those without a city here."""


@lru_cache(maxsize=1 << 16)
def places_in(text: str) -> Places:
    """All places that a text names; of names that overlap, the longest counts ("Mexico City" is not in it "Mexico")."""
    found_cities: set[str] = set()
    found_countries: set[frozenset[str]] = set()
    for city, country in _named(plain_words(text)):
        found_cities |= {city} if city else set()
        found_countries |= {country} if country else set()
    return Places(frozenset(found_cities), frozenset(found_countries))


def _named(words: tuple[str, ...]) -> Iterator[tuple[str, frozenset[str]]]:
    lexicon, longest = _lexicon()
    place = 0
    while place < len(words):
        for length in range(longest.get(words[place], 0), 0, -1):
            if (found := lexicon.get(words[place : place + length])) is not None:
                yield found
                place += length
                break
        else:
            place += 1


@lru_cache(maxsize=1)
def _lexicon() -> tuple[Mapping[tuple[str, ...], tuple[str, frozenset[str]]], Mapping[str, int]]:
    """From names to the city and the countries that they may mean; and how long names with that first word are."""
    others = (files("lmrl") / "assets" / "guess_city_other_countries.txt").read_text(encoding="utf-8").splitlines()
    meant: dict[tuple[str, ...], set[str]] = {}
    for country, names in [*country_names().items(), *((name, (name,)) for name in others)]:
        for name in names:
            meant.setdefault(plain_words(name), set()).add(country)
    city_of = {plain_words(name): city.name for city in cities() for name in city.names}
    lexicon = {name: (city_of.get(name, ""), frozenset(meant.get(name, ()))) for name in {*meant, *city_of}}
    lexicon |= {plain_words(name): ("", frozenset()) for name in _OTHERS}
    longest: dict[str, int] = {}
    for words in lexicon:
        longest[words[0]] = max(longest.get(words[0], 0), len(words))
    return lexicon, longest
