"""The hundred cities of Guess My City, what is true of them, and which of them and of their countries a text names."""

import csv
import re
import unicodedata
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

__all__ = [
    "City",
    "Places",
    "Topic",
    "cities",
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
_LONGEST = 12


@lru_cache(maxsize=1 << 16)
def plain_words(text: str) -> tuple[str, ...]:
    """Small letters and digits without accents, cut at everything else."""
    bare = unicodedata.normalize("NFKD", text.replace("n't", " not").replace("n\u2019t", " not"))
    small = "".join(sign for sign in bare if not unicodedata.combining(sign)).lower()
    return tuple(_WORD.findall(_OFFSET.sub(lambda found: f"utc {_SIGNS[found[1]]} ", small)))


def stemmed_words(text: str) -> tuple[str, ...]:
    """The same words without the ending of the plural."""
    return tuple(map(_stem, plain_words(text)))


@lru_cache(maxsize=1 << 14)
def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def phrases_in(words: tuple[str, ...], phrases: Container[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The phrases in a text from left to right; of those that overlap, the one that begins first, then the longest."""
    place = 0
    found = []
    while place < len(words):
        for length in range(min(_LONGEST, len(words) - place), 0, -1):
            phrase = words[place : place + length]
            if phrase in phrases:
                found.append(phrase)
                place += length
                break
        else:
            place += 1
    return found


@dataclass(frozen=True, eq=False)
class City:
    """A city. Its place in `cities` is its number in the deterministic mode."""

    name: str
    """The name of today."""
    aliases: tuple[str, ...]
    """Old names and other spellings."""
    country: str
    facts: Mapping[str, tuple[str, ...]]
    """What is true, by topic; nothing where there is nothing (no sea, no river)."""
    general: Mapping[str, tuple[str, ...]]
    """The same in general terms, which fit many cities ("a palace"); where there are none, the facts themselves."""
    disputed: str = ""
    """A country of which it is disputed whether the city belongs to it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of the city."""
        return (self.name, *self.aliases)

    def every(self, topic: str) -> tuple[str, ...]:
        """Facts and general terms of a topic."""
        return (*self.facts[topic], *self.general[topic])


@dataclass(frozen=True, eq=False)
class Topic:
    """Something to talk about."""

    name: str
    closed: bool
    """Whether what is not listed is false (there is one continent, but more than one dish)."""
    keywords: tuple[str, ...]
    """Words and phrases that show that a question is about it."""
    sentences: tuple[str, ...]
    """How a fact is told."""
    without: tuple[str, ...]
    """How it is told that there is nothing."""
    questions: tuple[str, ...]
    """How it is asked for."""
    synonyms: tuple[tuple[str, str], ...]
    """Other words for facts."""


@lru_cache(maxsize=1)
def cities() -> tuple[City, ...]:
    """All cities, in the order of the original's list. Names are those of today."""
    countries = {row["country"]: row for row in _rows("countries.tsv")}
    return tuple(_city(row, countries[row["country"]]) for row in _rows("cities.tsv"))


@lru_cache(maxsize=1)
def topics() -> tuple[Topic, ...]:
    """All topics; of two that fit equally well, a question is about the first."""
    return tuple(
        Topic(
            name=row["topic"],
            closed=row["kind"] == "closed",
            keywords=_listed(row["keywords"]),
            sentences=_listed(row["sentences"], "|"),
            without=_listed(row["without"], "|"),
            questions=_listed(row["questions"], "|"),
            synonyms=tuple(_pair(text) for text in _listed(row["synonyms"])),
        )
        for row in _rows("topics.tsv")
    )


@lru_cache(maxsize=1)
def country_names() -> Mapping[str, tuple[str, ...]]:
    """Every name of each country that has a city here."""
    return {row["country"]: (row["country"], *_listed(row["aliases"])) for row in _rows("countries.tsv")}


@lru_cache(maxsize=1)
def _by_name() -> Mapping[str, City]:
    return {city.name: city for city in cities()}


def city_named(name: str) -> City:
    """The city with that name of today.

    Raises:
        KeyError: if there is none.
    """
    return _by_name()[name]


def _city(row: Mapping[str, str], country: Mapping[str, str]) -> City:
    own = dict(_pair(text) for text in _listed(row["own"], ";;"))
    sources = (own, row, country)
    told = {topic.name: next((s[topic.name] for s in sources if s.get(topic.name)), "") for topic in topics()}
    facts = {topic: _listed(text) for topic, text in told.items()}
    return City(
        name=row["city"],
        aliases=_listed(row["aliases"]),
        country=row["country"],
        facts=facts,
        general={
            topic: _listed(country.get(f"general {topic}", "")) or _in_general(topic, values)
            for topic, values in facts.items()
        },
        disputed=own.get("disputed", ""),
    )


def _in_general(topic: str, values: tuple[str, ...]) -> tuple[str, ...]:
    """The general terms for facts, by the words that stand in them."""
    terms = _terms().get(topic, {})
    found: list[str] = []
    for value in values:
        for phrase in phrases_in(stemmed_words(value), terms):
            found += terms[phrase]
        found += terms.get(("",), ())
    return tuple(dict.fromkeys(found)) or values


@lru_cache(maxsize=1)
def _terms() -> Mapping[str, Mapping[tuple[str, ...], tuple[str, ...]]]:
    """By topic, from words in facts to the general terms that they call for; no word at all calls for some."""
    terms: dict[str, dict[tuple[str, ...], tuple[str, ...]]] = {}
    for row in _rows("general.tsv"):
        own = terms.setdefault(row["topic"], {})
        for text in _listed(row["words"]):
            phrase = stemmed_words(text) or ("",)
            own[phrase] = (*own.get(phrase, ()), row["general"])
    return terms


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("lmrl.envs.guess_city") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))


def _listed(text: str, between: str = ";") -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(between) if part.strip())


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


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
            found = lexicon.get(words[place : place + length])
            if found is not None:
                yield found
                place += length
                break
        else:
            place += 1


@lru_cache(maxsize=1)
def _lexicon() -> tuple[Mapping[tuple[str, ...], tuple[str, frozenset[str]]], Mapping[str, int]]:
    """From names to the city and the countries that they may mean; and how long names with that first word are."""
    others = (files("lmrl.envs.guess_city") / "other_countries.txt").read_text(encoding="utf-8").splitlines()
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
