"""Scripted guessers of a city. They know the table and read what was said, or some of it, and nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from lmrl.behaviours.chance import turn_chance
from lmrl.behaviours.city_clues import EVERYWHERE, agreeing, best_topic, members
from lmrl.envs.cities import City, cities, topics
from lmrl.envs.city_reading import read_question
from lmrl.protocols import Reply, Request

__all__ = ["CityGuesser", "Skill", "any_question", "informed", "of_skill"]

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
        if chance.random() < skill.hunches and (hunch := _hunch(chance.choice(members(left)), request, chance)):
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
    asked = {topic.name for action in request.actions if (topic := read_question(action).topic) is not None}
    fresh = [topic for topic in topics() if topic.name not in asked] or topics()
    return chance.choice(chance.choice(fresh).questions)
