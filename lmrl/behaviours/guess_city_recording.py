"""The recipe of the Guess My City dataset: guessers of graded skill, a new one in every episode.

Source: LMRL-Gym, appendix C.7 and Table 1 (there two language models talk). The mixture is chosen so that success and
length come near the published ones.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random
from typing import Any

from lmrl.behaviours.guess_city import CityGuesser, Skill, Strategy, any_question, informed, of_skill
from lmrl.behaviours.recording import Recording, episode_seed
from lmrl.envs.cities import cities
from lmrl.protocols import Policy
from lmrl.rollout import Start

__all__ = ["PLAYERS", "SKILLS", "recording"]

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


PLAYERS = {
    "random": _player(_always(any_question)),
    "behaviour": _player(_graded),
    "optimal": _player(_always(informed)),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """The recipe, whatever the partner. Of every hundred episodes in a row, each city has one."""
    return Recording(policy=PLAYERS["behaviour"](env), start=_start)


def _start(seed: int, index: int) -> Start:
    return Start(episode_seed(seed, index), {"city": _order(seed, index // len(cities()))[index % len(cities())]})


@lru_cache(maxsize=64)
def _order(seed: int, block: int) -> tuple[str, ...]:
    names = [city.name for city in cities()]
    Random(f"cities {seed} {block}").shuffle(names)
    return tuple(names)
