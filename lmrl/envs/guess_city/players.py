"""Scripted guessers of a city, and the recipe of the dataset. Sets of cities are integers with a bit for each.

Source: LMRL-Gym, appendix C.7 and Table 1 (there two language models talk). The mixture is chosen so that success and
length come near the published ones.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log
from random import Random
from typing import Any

from lmrl.envs.guess_city.cities import City, Topic, cities, country_names, plain_words, topics
from lmrl.envs.guess_city.env import FOUND, HEADER
from lmrl.envs.guess_city.oracle import PHRASES, truth
from lmrl.envs.guess_city.reading import Reading, read_question, values_in
from lmrl.envs.task import Recording, TaskTokens, recording_seed, turn_chance, words_as_tokens
from lmrl.types import Policy, Reply, Request, Start

__all__ = [
    "EVERYWHERE",
    "PLAYERS",
    "SKILLS",
    "CityGuesser",
    "Skill",
    "agreeing",
    "any_question",
    "best_topic",
    "informed",
    "members",
    "of_skill",
    "recording",
    "tokens",
]

EVERYWHERE = (1 << len(cities())) - 1
"""All cities."""


@lru_cache(maxsize=1 << 16)
def agreeing(question: str, answer: str) -> int:
    """The cities of which the answer may be true; all where it says nothing.

    A denial ("There is no sea here.") counts first, then facts that the answer names, then yes and no.
    """
    reading = read_question(question)
    said = plain_words(answer)
    if reading.places.cities:
        return EVERYWHERE & ~_where(lambda city: city.name in reading.places.cities)
    topic = reading.topic
    if topic is not None and any(plain_words(text) == said for text in topic.without):
        return _where(lambda city: not city.facts[topic.name])
    if topic is not None and not reading.about_country:
        named = values_in(answer, topic)
        if named:
            return _where(lambda city: not named.isdisjoint(city.every(topic.name))) or EVERYWHERE
    if said[:1] in (("yes",), ("no",), ("not",)) and (reading.about_country or topic is not None):
        return _saying(reading, said[0] == "yes") or EVERYWHERE
    return EVERYWHERE


def members(some: int) -> list[City]:
    """The cities of a set, in order."""
    return [city for place, city in enumerate(cities()) if some >> place & 1]


@lru_cache(maxsize=1 << 14)
def best_topic(some: int) -> Topic:
    """The topic of which the answer to an open question is expected to leave the fewest of these cities."""
    return min(topics(), key=lambda topic: round(_remaining(members(some), topic), 9))


def _remaining(some: list[City], topic: Topic) -> float:
    """The expected logarithm of the number of remaining cities, if the answer contains only general terms."""
    weight: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for city in some:
        values = city.general[topic.name] or ("",)
        for value in values:
            weight[value] += 1 / len(values)
            count[value] += 1
    return sum(weight[value] * log(count[value]) for value in weight)


def _saying(reading: Reading, yes: bool) -> int:
    """The cities where the answer is yes, or is no."""
    return sum(1 << place for place, said in enumerate(_truths(reading)) if said is yes)


@lru_cache(maxsize=1 << 12)
def _truths(reading: Reading) -> tuple[bool | None, ...]:
    return tuple(truth(city, reading) for city in cities())


def _where(holds: Callable[[City], bool]) -> int:
    return sum(1 << place for place, city in enumerate(cities()) if holds(city))


_GUESSES = ("Is it {}?", "Do you live in {}?", "Is your city {}?")
_HUNCHES = (
    ("continent", "Is it in {}?"),
    ("region", "Is it in {}?"),
    ("language", "Do people speak {}?"),
    ("sport", "Is {} popular?"),
    ("religion", "Do people follow {}?"),
    ("currency", "Do you pay with the {}?"),
    ("sea", "Is it on {}?"),
    ("timezone", "Is it at {}?"),
)
_COUNTRY = "Is it in {}?"
_WITH_THE = ("Philippines", "United Kingdom", "United States")
_PLAIN = ("Is it a big city?", "Is it a small city?", "Is it by the sea?", "Is there a river?", "Is it a capital?")


@dataclass(frozen=True, slots=True)
class Skill:
    """How well a guesser plays."""

    memory: int
    """How many answers it keeps in mind, the last ones, besides those to its guesses."""
    patience: int
    """Number of questions after which it only guesses."""
    sure: int
    """It also guesses as soon as no more than so many cities are left; 0: it asks as long as its patience lasts."""
    hunches: float
    """Share of its questions that are yes/no questions about a city that it has in mind."""


Strategy = Callable[[Request, Random], str]
"""From what was said to the next question, without its line break."""


class CityGuesser:
    """Plays a strategy that may differ from episode to episode.

    Args:
        strategy_of: from the seed of an episode to the strategy; see `informed` and its neighbors.
    """

    def __init__(self, strategy_of: Callable[[int], Strategy]) -> None:
        self._strategy_of = strategy_of

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A question for each request."""
        return [Reply(self._strategy_of(request.seed)(request, turn_chance(request)) + "\n") for request in requests]


def any_question(request: Request, chance: Random) -> str:
    """Any question of a guesser, or any guess."""
    if chance.random() < 0.5:
        return _guess(chance.choice(cities()), chance)
    return chance.choice(chance.choice(topics()).questions)


def informed(request: Request, chance: Random) -> str:
    """Knows all facts, asks what tells most, and guesses when no more than two cities are left. Deterministic."""
    left = EVERYWHERE
    for question, answer in _said(request):
        left &= agreeing(question, answer)
    left = left or _not_guessed(request)
    if left.bit_count() <= 2:
        return _GUESSES[0].format(members(left)[0].name)
    asked = [*request.actions]
    topic = best_topic(left)
    # Somebody evaded the question: the other way to put it, and then any city.
    fresh = [question for question in topic.questions if f"{question}\n" not in asked]
    return fresh[0] if fresh else _guess(chance.choice(members(left)), chance)


def of_skill(skill: Skill) -> Strategy:
    """Asks about what it did not ask yet, in any order, and guesses what agrees with the answers that it remembers."""

    def ask(request: Request, chance: Random) -> str:
        left = _left(request, skill.memory)
        if request.turn >= skill.patience or left.bit_count() <= skill.sure:
            return _guess(chance.choice(members(left)), chance)
        if chance.random() < skill.hunches:
            hunch = _hunch(chance.choice(members(left)), request, chance)
            if hunch:
                return hunch
        return _open_question(request, chance)

    return ask


def _left(request: Request, memory: int) -> int:
    """The cities that agree with the answers in mind."""
    said = _said(request)
    guesses = [read_question(question).places.cities for question, _ in said]
    forgotten = guesses.count(frozenset()) - memory
    left = EVERYWHERE
    for (question, answer), guessed in zip(said, guesses, strict=True):
        forgotten -= not guessed
        if guessed or forgotten < 0:
            left &= agreeing(question, answer)
    return left or _not_guessed(request)


def _not_guessed(request: Request) -> int:
    """All but the wrong guesses: somebody said what is not in the table."""
    left = EVERYWHERE
    for question, answer in _said(request):
        left &= agreeing(question, answer) if read_question(question).places.cities else EVERYWHERE
    return left or EVERYWHERE


def _said(request: Request) -> Sequence[tuple[str, str]]:
    return [*zip(request.actions, request.observations[1:], strict=True)]


def _guess(city: City, chance: Random) -> str:
    return chance.choice(_GUESSES).format(city.name)


def _hunch(city: City, request: Request, chance: Random) -> str:
    """A yes/no question to which the answer would be yes if it was that city; "" if it was asked already."""
    kind = chance.randrange(len(_HUNCHES) + 2)
    if kind == len(_HUNCHES):
        question = chance.choice(_PLAIN)
    elif kind > len(_HUNCHES):
        question = _COUNTRY.format(f"the {city.country}" if city.country in _WITH_THE else city.country)
    else:
        topic, form = _HUNCHES[kind]
        question = form.format(chance.choice(city.facts[topic])) if city.facts[topic] else ""
    return "" if f"{question}\n" in request.actions else question


def _open_question(request: Request, chance: Random) -> str:
    asked = set()
    for action in request.actions:
        topic = read_question(action).topic
        if topic is not None:
            asked.add(topic.name)
    fresh = [topic for topic in topics() if topic.name not in asked] or topics()
    return chance.choice(chance.choice(fresh).questions)


SKILLS: tuple[tuple[int, Skill], ...] = (
    (40, Skill(memory=3, patience=18, sure=0, hunches=0.3)),
    (39, Skill(memory=2, patience=18, sure=0, hunches=0.3)),
    (8, Skill(memory=2, patience=10, sure=0, hunches=0.3)),
    (5, Skill(memory=4, patience=14, sure=0, hunches=0.5)),
    (8, Skill(memory=20, patience=14, sure=1, hunches=0.2)),
)
"""Out of a hundred episodes, how many are played with which skill."""

_STRATEGIES = tuple((share, of_skill(skill)) for share, skill in SKILLS)


@lru_cache(maxsize=1 << 12)
def _graded(seed: int) -> Strategy:
    """The strategy of an episode."""
    strategies = [strategy for _, strategy in _STRATEGIES]
    return Random(f"skill {seed}").choices(strategies, [share for share, _ in _STRATEGIES])[0]


def _always(strategy: Strategy) -> Callable[[int], Strategy]:
    return lambda seed: strategy


def _player(strategy_of: Callable[[int], Strategy]) -> Callable[[Mapping[str, Any]], Policy]:
    return lambda env: CityGuesser(strategy_of)


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """The words of names, facts, answers and questions, and the end of an answer."""
    told = [text for topic in topics() for text in (*topic.sentences, *topic.without, *topic.questions)]
    asked = [*_GUESSES, *(text for _, text in _HUNCHES), _COUNTRY, *_PLAIN]
    places = [name for city in cities() for name in city.names] + [*country_names()]
    facts = [fact for city in cities() for topic in topics() for fact in city.every(topic.name)]
    inside = (f" {text}" for text in (*places, *facts))  # of a sentence, after a space
    return words_as_tokens([*told, *PHRASES, FOUND, *asked, *inside], lines=[HEADER, ".\n"])


PLAYERS = {
    "random": _player(_always(any_question)),
    "behaviour": _player(_graded),
    "optimal": _player(_always(informed)),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """The recipe, whatever the partner. Of every hundred episodes in a row, each city has one."""
    return Recording(policy=PLAYERS["behaviour"](env), start=_start)


def _start(seed: int, index: int) -> Start:
    return Start(recording_seed(seed, index), {"city": _order(seed, index // len(cities()))[index % len(cities())]})


@lru_cache(maxsize=64)
def _order(seed: int, block: int) -> tuple[str, ...]:
    names = [city.name for city in cities()]
    Random(f"cities {seed} {block}").shuffle(names)
    return tuple(names)
