"""The hundred cities, what is true of them, and the topics under which people talk about them."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from lmrl.envs.city_words import phrases_in, stemmed_words

__all__ = ["City", "Topic", "cities", "city_named", "country_names", "topics"]


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
    countries = {row["country"]: row for row in _rows("guess_city_countries.tsv")}
    return tuple(_city(row, countries[row["country"]]) for row in _rows("guess_city.tsv"))


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
        for row in _rows("guess_city_topics.tsv")
    )


@lru_cache(maxsize=1)
def country_names() -> Mapping[str, tuple[str, ...]]:
    """Every name of each country that has a city here."""
    return {row["country"]: (row["country"], *_listed(row["aliases"])) for row in _rows("guess_city_countries.tsv")}


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
    for row in _rows("guess_city_general.tsv"):
        own = terms.setdefault(row["topic"], {})
        for text in _listed(row["words"]):
            phrase = stemmed_words(text) or ("",)
            own[phrase] = (*own.get(phrase, ()), row["general"])
    return terms


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("lmrl") / "assets" / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))


def _listed(text: str, between: str = ";") -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(between) if part.strip())


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip()
