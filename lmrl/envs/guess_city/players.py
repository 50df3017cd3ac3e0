"""Scripted policies for Guess My City, and the recipe of the dataset. Sets of cities are integers with a bit for each.

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

from lmrl.envs.guess_city.cities import City, Topic, cities, cities_by_name, country_names, plain_words, topics
from lmrl.envs.guess_city.env import FOUND, HEADER
from lmrl.envs.guess_city.oracle import PHRASES, truth
from lmrl.envs.guess_city.reading import Reading, read_question, values_in
from lmrl.envs.task import Recording, TaskTokens, recording_seed, turn_chance, words_as_tokens
from lmrl.types import Policy, Reply, Request, Start

__all__ = ["EVERYWHERE", "PLAYERS", "SKILLS", "CityGuesser", "Skill", "agreeing", "members", "of_skill", "recording"]

EVERYWHERE = (1 << len(cities())) - 1
"""All cities."""


@lru_cache(maxsize=1 << 16)
def agreeing(question: str, answer: str) -> int:
    """Return the cities for which an answer can be true; all cities if the answer is not informative.

    A denial ("There is no sea here.") counts first, then facts in the answer, then yes and no.
    """
    reading = read_question(question)
    words = plain_words(answer)
    # A question that names a city and does not end the game was a wrong guess.
    if reading.places.cities:
        return EVERYWHERE & ~_where(lambda city: city.name in reading.places.cities)
    topic = reading.topic
    if topic is not None and words in map(plain_words, topic.without):
        return _where(lambda city: not city.facts[topic.name])
    if topic is not None and not reading.about_country:
        named = values_in(answer, topic)
        if named:
            return _where(lambda city: not named.isdisjoint(city.every(topic.name))) or EVERYWHERE
    if words[:1] in (("yes",), ("no",), ("not",)) and (reading.about_country or topic is not None):
        yes, no = _truths(reading)
        return (yes if words[0] == "yes" else no) or EVERYWHERE
    return EVERYWHERE


def members(some: int) -> list[City]:
    """The cities of a set, in order."""
    return [city for index, city in enumerate(cities()) if some >> index & 1]


@lru_cache(maxsize=1 << 14)
def best_topic(some: int) -> Topic:
    """Return the topic for which the answer to an open question leaves the fewest of these cities on average."""
    # Rounded, so that the first of equals wins on every machine.
    return min(topics(), key=lambda topic: round(_remaining(members(some), topic), 9))


def _remaining(some: list[City], topic: Topic) -> float:
    """Return the expected logarithm of the number of remaining cities after an answer in general terms."""
    weight: dict[str, float] = defaultdict(float)  # proportional to the probability of each answer
    count: dict[str, int] = defaultdict(int)  # cities that agree with it
    for city in some:
        values = city.general[topic.name] or ("",)
        for value in values:
            weight[value] += 1 / len(values)
            count[value] += 1
    return sum(weight[value] * log(count[value]) for value in weight)


@lru_cache(maxsize=1 << 12)
def _truths(reading: Reading) -> tuple[int, int]:
    """Return the cities for which the answer to a question is yes, and those for which it is no."""
    return _where(lambda city: truth(city, reading) is True), _where(lambda city: truth(city, reading) is False)


def _where(holds: Callable[[City], bool]) -> int:
    """Return the set of cities for which a predicate holds."""
    some = 0
    for index, city in enumerate(cities()):
        if holds(city):
            some |= 1 << index
    return some


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
    """The strength of a scripted policy."""

    memory: int
    """Number of the last answers that it remembers; it always remembers its wrong guesses."""
    patience: int
    """Number of questions after which it only guesses."""
    sure: int
    """It also guesses as soon as at most this many cities are left; 0: it asks until its patience ends."""
    hunches: float
    """Share of yes-or-no questions about one of the cities that are left."""


Strategy = Callable[[Request, Random], str]
"""A function from a request to the next question, without the line break."""


class CityGuesser:
    """A policy with a strategy per episode.

    Args:
        strategy_of: a function from the seed of an episode to the strategy, for example `informed`.
    """

    def __init__(self, strategy_of: Callable[[int], Strategy]) -> None:
        self._strategy_of = strategy_of

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A question for each request."""
        return [Reply(self._strategy_of(request.seed)(request, turn_chance(request)) + "\n") for request in requests]


def any_question(request: Request, chance: Random) -> str:
    """Ask any open question, or guess any city."""
    if chance.random() < 0.5:
        return _guess(chance.choice(cities()), chance)
    return chance.choice(chance.choice(topics()).questions)


def informed(request: Request, chance: Random) -> str:
    """Ask the most informative question, and guess when at most two cities are left; deterministic."""
    left = _left(request, memory=len(request.actions))
    if left.bit_count() <= 2:
        return _GUESSES[0].format(members(left)[0].name)
    # The best topic stays the best after an evasive answer: try its other questions, and then guess any city.
    for question in best_topic(left).questions:
        if f"{question}\n" not in request.actions:
            return question
    return _guess(chance.choice(members(left)), chance)


def of_skill(skill: Skill) -> Strategy:
    """Return a strategy that asks about new topics in random order, and guesses a city that agrees with its memory."""

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
    """Return the cities that agree with all guesses and with the last ``memory`` other answers."""
    left = EVERYWHERE
    not_guessed = EVERYWHERE
    for question, answer in reversed([*zip(request.actions, request.observations[1:], strict=True)]):
        if read_question(question).places.cities:
            not_guessed &= agreeing(question, answer)
        elif memory > 0:
            memory -= 1
            left &= agreeing(question, answer)
    # A partner with a model may give answers that contradict the table: then only the guesses count.
    return left & not_guessed or not_guessed or EVERYWHERE


def _guess(city: City, chance: Random) -> str:
    return chance.choice(_GUESSES).format(city.name)


def _hunch(city: City, request: Request, chance: Random) -> str:
    """Return a yes-or-no question with the answer yes for this city; "" if it was asked before."""
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
    """Return a question about a topic that the policy did not ask about yet, if there is one."""
    asked = {read_question(action).topic for action in request.actions}
    new = [topic for topic in topics() if topic not in asked]
    return chance.choice(chance.choice(new or topics()).questions)


SKILLS: tuple[tuple[int, Skill], ...] = (
    (40, Skill(memory=3, patience=18, sure=0, hunches=0.3)),
    (39, Skill(memory=2, patience=18, sure=0, hunches=0.3)),
    (8, Skill(memory=2, patience=10, sure=0, hunches=0.3)),
    (5, Skill(memory=4, patience=14, sure=0, hunches=0.5)),
    (8, Skill(memory=20, patience=14, sure=1, hunches=0.2)),
)
"""The skills of the behaviour policy, each with its number of episodes out of a hundred."""


@lru_cache(maxsize=1 << 12)
def _graded(seed: int) -> Strategy:
    """Return the strategy of the behaviour policy for an episode."""
    shares, skills = zip(*SKILLS, strict=True)
    return of_skill(Random(f"skill {seed}").choices(skills, shares)[0])


def _always(strategy: Strategy) -> Callable[[int], Strategy]:
    return lambda seed: strategy


def _player(strategy_of: Callable[[int], Strategy]) -> Callable[[Mapping[str, Any]], Policy]:
    return lambda env: CityGuesser(strategy_of)


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """The words of names, facts, answers and questions, and the end of an answer."""
    texts: list[str] = []
    for topic in topics():
        texts += [*topic.sentences, *topic.without, *topic.questions]
    texts += [*PHRASES, FOUND, *_GUESSES, *dict(_HUNCHES).values(), _COUNTRY, *_PLAIN]
    # Names and facts stand inside a sentence, where the token of a word begins with a space.
    inside: list[str] = []
    for city in cities():
        inside += city.names
    inside += country_names()
    for city in cities():
        for topic in topics():
            inside += city.every(topic.name)
    texts += [f" {text}" for text in inside]
    return words_as_tokens(texts, lines=[HEADER, ".\n"])


PLAYERS = {
    "random": _player(_always(any_question)),
    "behaviour": _player(_graded),
    "optimal": _player(_always(informed)),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """Return the recipe of the dataset, which is the same for every partner."""
    return Recording(policy=PLAYERS["behaviour"](env), start=_start)


def _start(seed: int, index: int) -> Start:
    """Start an episode; each block of a hundred episodes has every city once, in a new order."""
    names = [*cities_by_name()]
    Random(f"cities {seed} {index // len(names)}").shuffle(names)
    return Start(recording_seed(seed, index), {"city": names[index % len(names)]})
