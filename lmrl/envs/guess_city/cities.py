"""The hundred cities of Guess My City with their facts, and a search for cities and countries in a text."""

import csv
import re
import unicodedata
from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

__all__ = [
    "City",
    "Places",
    "Topic",
    "cities",
    "cities_by_name",
    "city_named",
    "country_names",
    "phrases_in",
    "places_in",
    "plain_words",
    "stemmed_words",
    "topics",
]

_WORD = re.compile(r"[a-z0-9]+")
_SIGNS = {"+": "plus", "-": "minus"}
_OFFSET = re.compile(r"\b(?:utc|gmt) ?([+-])")
_MAX_PHRASE_WORDS = 12  # words of the longest phrase


@lru_cache(maxsize=1 << 16)
def plain_words(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case, without accents and punctuation."""
    decomposed = unicodedata.normalize("NFKD", text.replace("n't", " not").replace("n\u2019t", " not"))
    lower = "".join(sign for sign in decomposed if not unicodedata.combining(sign)).lower()
    # Keep the sign of a time zone, which is the only punctuation with a meaning: "UTC+3" is "utc plus 3".
    return tuple(_WORD.findall(_OFFSET.sub(lambda match: f"utc {_SIGNS[match[1]]} ", lower)))


def stemmed_words(text: str) -> tuple[str, ...]:
    """Return the words of a text without the ending of the plural."""
    return tuple(map(_stem, plain_words(text)))


@lru_cache(maxsize=1 << 14)
def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def phrases_in(words: tuple[str, ...], phrases: Container[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Find phrases from left to right; of those that overlap, the one that begins first counts, then the longest."""
    start = 0
    found = []
    while start < len(words):
        for length in range(min(_MAX_PHRASE_WORDS, len(words) - start), 0, -1):
            phrase = words[start : start + length]
            if phrase in phrases:
                found.append(phrase)
                start += length
                break
        else:
            start += 1
    return found


@dataclass(frozen=True, eq=False)
class City:
    """A city. Its index in `cities` is its number in the deterministic mode."""

    name: str
    """Today's name."""
    aliases: tuple[str, ...]
    """Old names and other spellings."""
    country: str
    facts: Mapping[str, tuple[str, ...]]
    """Facts by topic; empty if there are none (no sea, no river)."""
    general: Mapping[str, tuple[str, ...]]
    """Facts in general terms that fit many cities ("a palace"); the facts themselves if there are no such terms."""
    disputed: str = ""
    """A country that claims the city."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the city."""
        return (self.name, *self.aliases)

    def every(self, topic: str) -> tuple[str, ...]:
        """Facts and general terms of a topic."""
        return (*self.facts[topic], *self.general[topic])


@dataclass(frozen=True, eq=False)
class Topic:
    """A subject of questions and answers, such as the continent or the food."""

    name: str
    closed: bool
    """Whether everything that is not listed is false (there is one continent, but more than one dish)."""
    keywords: tuple[str, ...]
    """Words and phrases that show that a question is about the topic."""
    sentences: tuple[str, ...]
    """Answers with a place for a fact."""
    without: tuple[str, ...]
    """Answers for a city without such facts."""
    questions: tuple[str, ...]
    synonyms: tuple[tuple[str, str], ...]
    """Other words for facts, and the facts."""


@lru_cache(maxsize=1)
def cities() -> tuple[City, ...]:
    """All cities in the order of the original's list, with today's names."""
    countries = {row["country"]: row for row in _rows("countries.tsv")}
    found = []
    for row in _rows("cities.tsv"):
        country = countries[row["country"]]
        own = dict(map(_pair, _listed(row["own"], ";;")))
        facts: dict[str, tuple[str, ...]] = {}
        general: dict[str, tuple[str, ...]] = {}
        for topic in topics():
            name = topic.name
            # The most specific source counts: exceptions of the city, then its row, then its country.
            facts[name] = _listed(own.get(name) or row.get(name) or country.get(name) or "")
            general[name] = _listed(country.get(f"general {name}", "")) or _in_general(name, facts[name])
        aliases = _listed(row["aliases"])
        found.append(City(row["city"], aliases, row["country"], facts, general, own.get("disputed", "")))
    return tuple(found)


@lru_cache(maxsize=1)
def topics() -> tuple[Topic, ...]:
    """All topics; of two that fit a question equally well, the first counts."""
    found = []
    for row in _rows("topics.tsv"):
        topic = Topic(
            name=row["topic"],
            closed=row["kind"] == "closed",
            keywords=_listed(row["keywords"]),
            sentences=_listed(row["sentences"], "|"),
            without=_listed(row["without"], "|"),
            questions=_listed(row["questions"], "|"),
            synonyms=tuple(map(_pair, _listed(row["synonyms"]))),
        )
        found.append(topic)
    return tuple(found)


@lru_cache(maxsize=1)
def country_names() -> Mapping[str, tuple[str, ...]]:
    """All names of each country that has a city in the game."""
    return {row["country"]: (row["country"], *_listed(row["aliases"])) for row in _rows("countries.tsv")}


@lru_cache(maxsize=1)
def cities_by_name() -> Mapping[str, City]:
    """All cities in the same order, by today's name."""
    return {city.name: city for city in cities()}


def city_named(name: str) -> City:
    """Return the city with that name (today's).

    Raises:
        KeyError: if there is none.
    """
    return cities_by_name()[name]


def _in_general(topic: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the general terms for facts, by the words that occur in them."""
    terms = _terms().get(topic, {})
    found: list[str] = []
    for value in values:
        for phrase in phrases_in(stemmed_words(value), terms):
            found += terms[phrase]
        found += terms.get(("",), ())
    return tuple(dict.fromkeys(found)) or values


@lru_cache(maxsize=1)
def _terms() -> Mapping[str, Mapping[tuple[str, ...], list[str]]]:
    """Return, for each topic, the general terms by a phrase of a fact; the phrase ``("",)`` stands for any fact."""
    terms: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for row in _rows("general.tsv"):
        of_topic = terms.setdefault(row["topic"], {})
        for text in _listed(row["words"]):
            # A text without words, such as "*", stands for any fact.
            of_topic.setdefault(stemmed_words(text) or ("",), []).append(row["general"])
    return terms


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("lmrl.envs.guess_city") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))


def _listed(text: str, between: str = ";") -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(between) if part.strip())


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


# Phrases that contain the name of a city or a country but mean something else. "La" would be Los Angeles.
_OTHERS = (
    "North America", "South America", "Latin America", "Central America", "Rio de la Plata", "de la", "a la",
    "Peking duck", "Peking opera", "New Mexico", "Gulf of Mexico", "South China Sea", "East China Sea",
    "Santiago de Cuba",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Places:
    """The cities and countries in a text, by today's names."""

    cities: frozenset[str]
    """Cities of the game."""
    countries: frozenset[frozenset[str]]
    """A set of possible countries for each name, since "Korea" may be two; countries without a city in the game too."""
    others: frozenset[str]
    """The words of the text that belong to none of these names."""


@lru_cache(maxsize=1 << 16)
def places_in(text: str) -> Places:
    """Find all places in a text; of names that overlap, the longest counts ("Mexico City" does not name "Mexico")."""
    found_cities: set[str] = set()
    found_countries: set[frozenset[str]] = set()
    others = Counter(plain_words(text))
    for name in phrases_in(plain_words(text), _lexicon()):
        city, countries = _lexicon()[name]
        if city or countries:
            others.subtract(name)
        if city:
            found_cities.add(city)
        if countries:
            found_countries.add(countries)
    return Places(frozenset(found_cities), frozenset(found_countries), frozenset(+others))


@lru_cache(maxsize=1)
def _lexicon() -> Mapping[tuple[str, ...], tuple[str, frozenset[str]]]:
    """Return, for each name, the city that it means ("" if none) and the countries that it may mean."""
    countries: dict[tuple[str, ...], set[str]] = {}
    for country, names in country_names().items():
        for name in names:
            countries.setdefault(plain_words(name), set()).add(country)
    for country in (files("lmrl.envs.guess_city") / "other_countries.txt").read_text(encoding="utf-8").splitlines():
        countries.setdefault(plain_words(country), set()).add(country)
    city_of: dict[tuple[str, ...], str] = {}
    for city in cities():
        city_of |= dict.fromkeys(map(plain_words, city.names), city.name)
    lexicon: dict[tuple[str, ...], tuple[str, frozenset[str]]] = {}
    for words in (*countries, *city_of):
        lexicon[words] = (city_of.get(words, ""), frozenset(countries.get(words, ())))
    # These come last: "Gulf of Mexico" takes the words of "Mexico" and means no place.
    return lexicon | dict.fromkeys(map(plain_words, _OTHERS), ("", frozenset()))
