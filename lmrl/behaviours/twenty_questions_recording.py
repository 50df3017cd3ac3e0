"""The recipe of the Twenty Questions dataset: players of all skills, each object hidden equally often.

Source: LMRL-Gym, appendix C.6 and Table 1. There two language models talk, which no one can repeat exactly.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from lmrl.behaviours.recording import Recording, episode_seed
from lmrl.behaviours.twenty_questions import Guesser, any_question, attentive, most_telling
from lmrl.envs.objects import things
from lmrl.protocols import Policy, Reply, Request
from lmrl.rollout import Start

__all__ = ["PLAYERS", "MixedGuesser", "recording"]

_SKILLS = {0.0: 7, 0.1: 6, 0.2: 3, 0.6: 2, 1.0: 3}
"""Probability of using the answers, and how many of 21 episodes are played so."""
_CUT = 0.38
"""Share of the conversations that break off before the end."""
_EARLIEST = 6
"""No conversation breaks off after fewer questions."""


class MixedGuesser:
    """In each episode a player of another skill, which follows from the seed of the episode."""

    def __init__(self) -> None:
        self._players = {attention: Guesser(attentive(attention)) for attention in _SKILLS}

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A question for each request."""
        return [self._players[_skill(request.seed)].act([request])[0] for request in requests]


def _skill(seed: int) -> float:
    return Random(f"skill {seed}").choices([*_SKILLS], [*_SKILLS.values()])[0]


def _breaks_off(request: Request) -> bool:
    chance = Random(f"cut {request.seed}")
    return chance.random() < _CUT and request.turn >= chance.randrange(_EARLIEST, 20)


def _start(seed: int, index: int) -> Start:
    """Each object comes once in every 158 episodes, in an order drawn anew each time."""
    every = [thing.name for thing in things()]
    Random(f"words {seed} {index // len(every)}").shuffle(every)
    return Start(episode_seed(seed, index), {"word": every[index % len(every)]})


_PLAYERS: dict[str, Callable[[], Policy]] = {
    "random": lambda: Guesser(any_question),
    "behaviour": MixedGuesser,
    "optimal": lambda: Guesser(most_telling),
}


def _player(make: Callable[[], Policy]) -> Callable[[Mapping[str, Any]], Policy]:
    return lambda env: make()


PLAYERS = {name: _player(make) for name, make in _PLAYERS.items()}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """The recipe, whoever answers.

    Some conversations break off, as in the published data: without that the published length (14.9) and success (.31)
    exclude each other, since 69 % of 20 questions are 13.8 already.
    """
    return Recording(policy=PLAYERS["behaviour"](env), start=_start, stop=_breaks_off)
