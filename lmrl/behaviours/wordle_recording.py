"""The recipe of the Wordle dataset: a third of the guesses agree with what is known, the others are any words.

Source: LMRL-Gym, appendix C, and the reference's data generator (66 % uniform guesses, 34 % consistent ones; its
default of .33 gives the published length 4.82, success .70 and return -4.12).
"""

from collections.abc import Callable, Mapping
from typing import Any

from lmrl.behaviours.recording import Recording, episode_seed
from lmrl.behaviours.wordle import Strategy, WordlePlayer, best_guess, mixture, opener, repeated, wrong
from lmrl.protocols import Policy
from lmrl.rollout import Start

__all__ = ["PLAYERS", "PROB_SMART", "recording"]

PROB_SMART = 0.33
"""Share of the guesses that agree with all feedback."""

_STRATEGIES: dict[str, Strategy] = {
    "random": mixture(0.0),
    "behaviour": mixture(PROB_SMART),
    "optimal": best_guess,
    "consistent": mixture(1.0),
    "opener": opener,
    "repeated": repeated,
    "wrong": wrong,
}


def _player(strategy: Strategy) -> Callable[[Mapping[str, Any]], Policy]:
    return lambda env: WordlePlayer(strategy, env.get("vocab"), env.get("counted", False))


PLAYERS = {name: _player(strategy) for name, strategy in _STRATEGIES.items()}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """The recipe, whatever the vocabulary."""
    return Recording(policy=PLAYERS["behaviour"](env), start=lambda seed, index: Start(episode_seed(seed, index)))
