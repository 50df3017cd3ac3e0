"""Scripted policies for Twenty Questions, which know the table of properties, and the recipe of the dataset.

Source: LMRL-Gym, appendix C.6 and Table 1. The original dataset is a dialogue of two language models, which cannot be
reproduced exactly.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import Any

from lmrl.envs.task import Recording, least_of, recording_seed, turn_chance
from lmrl.envs.twenty_questions.env import QUESTIONS, guess_of
from lmrl.envs.twenty_questions.meaning import meaning
from lmrl.envs.twenty_questions.objects import Property, everything, place_of, things
from lmrl.envs.twenty_questions.questions import HELD_OUT, common_properties
from lmrl.errors import UserError
from lmrl.types import Policy, Reply, Request, Start

__all__ = ["PLAYERS", "Guesser", "MixedGuesser", "attentive", "recording"]

Strategy = Callable[[int, Request, Random], str]
"""A function from the set of objects that agree with all answers, the request and a generator to a question."""

_CONSIDERED = 6  # properties that an attentive policy draws to choose among
_FIRST_PHRASING_WEIGHT = 10  # the first phrasing of a property is this many times as frequent as any other
_RASH = 0.15  # share of guesses among questions that use no answers
_GUESSES_LAST = 5  # last turns, in which the random policy only guesses


class Guesser:
    """A policy that asks by a strategy.

    Args:
        strategy: for example `any_question` or ``attentive(0.6)``.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A question for each request."""
        return [Reply(self._strategy(_agreeing(request), request, turn_chance(request))) for request in requests]


def attentive(attention: float) -> Strategy:
    """Return a strategy that uses the answers so far with a probability, and else asks or guesses anything.

    A question that uses the answers draws a few properties and asks for the one that splits the remaining objects most
    evenly; it is a guess if only one or two are left. The last question is always a guess.

    Args:
        attention: the probability on each turn.

    Raises:
        UserError: if ``attention`` is not in [0, 1].
    """
    if not 0 <= attention <= 1:
        raise UserError(f"attention must be from 0 to 1, got {attention}")

    def ask(agreeing: int, request: Request, chance: Random) -> str:
        heeds = chance.random() < attention
        if request.turn == QUESTIONS - 1:
            return _guess(agreeing if heeds else everything(), chance)
        if heeds:
            return _telling(agreeing, chance)
        return _guess(everything(), chance) if chance.random() < _RASH else _asked(_any_property(chance), chance)

    return ask


def any_question(agreeing: int, request: Request, chance: Random) -> str:
    """Ask for any property in any phrasing, and guess any object on the last turns."""
    if request.turn >= QUESTIONS - _GUESSES_LAST:
        return _guess(everything(), chance)
    return f"{chance.choice(_any_property(chance).phrasings[:HELD_OUT])}\n"


def most_telling(agreeing: int, request: Request, chance: Random) -> str:
    """Ask for the most informative property, or guess if no property splits the objects; deterministic."""
    best = _best_split(agreeing)
    if best is None or agreeing.bit_count() <= 2:
        first = (agreeing & -agreeing).bit_length() - 1  # index of the lowest bit
        return guess_of(things()[first])
    return f"{best.phrasings[0]}\n"


def _telling(agreeing: int, chance: Random) -> str:
    left = agreeing.bit_count()
    if left <= 2:
        return _guess(agreeing, chance)
    best: Property | None = least_of(
        chance,
        common_properties(),
        _popularity(),
        _CONSIDERED,
        lambda item: abs(2 * (item.yes & agreeing).bit_count() - left),
    )
    # If none of the drawn properties splits the objects, take the best of all.
    if best is not None and (best.yes & agreeing).bit_count() in (0, left):
        best = _best_split(agreeing)
    return _guess(agreeing, chance) if best is None else _asked(best, chance)


def _any_property(chance: Random) -> Property:
    return chance.choices(common_properties(), cum_weights=_popularity())[0]


def _asked(item: Property, chance: Random) -> str:
    """Return a phrasing of a property, the first one `_FIRST_PHRASING_WEIGHT` times as often as any other."""
    phrasings = item.phrasings[:HELD_OUT]
    drawn = chance.randrange(_FIRST_PHRASING_WEIGHT + len(phrasings) - 1)
    return f"{phrasings[max(0, drawn - _FIRST_PHRASING_WEIGHT + 1)]}\n"


def _guess(subset: int, chance: Random) -> str:
    members = [index for index in range(len(things())) if subset >> index & 1]
    return guess_of(things()[chance.choice(members)])


@lru_cache(maxsize=1)
def _popularity() -> tuple[float, ...]:
    """Return running sums of weights: the squared information of each property about an unknown object."""
    weights = []
    for item in common_properties():
        share = item.yes.bit_count() / len(things())
        bits = -sum(part * math.log2(part) for part in (share, 1 - share) if part)
        weights.append(bits**2)
    return tuple(accumulate(weights))


@lru_cache(maxsize=1 << 16)
def _best_split(agreeing: int) -> Property | None:
    """Return the property that splits the objects most evenly (the first of equals); None if no property does."""
    left = agreeing.bit_count()
    best = min(common_properties(), key=lambda item: abs(2 * (item.yes & agreeing).bit_count() - left))
    return best if 0 < (best.yes & agreeing).bit_count() < left else None


def _agreeing(request: Request) -> int:
    """Return the objects that agree with most answers: with all of them, unless the oracle is noisy."""
    agreeing = everything()
    for action, observation in zip(request.actions, request.observations[1:], strict=True):
        yes = meaning(action)
        agreeing &= yes if observation.startswith("Yes") else ~yes
    if agreeing:
        return agreeing
    counts = [0] * len(things())
    for action, observation in zip(request.actions, request.observations[1:], strict=True):
        is_yes = observation.startswith("Yes")
        for index in range(len(things())):
            counts[index] += (meaning(action) >> index & 1) == is_yes
    most = max(counts)
    for index, count in enumerate(counts):
        if count == most:
            agreeing |= 1 << index
    return agreeing


_SKILLS = {0.0: 7, 0.1: 6, 0.2: 3, 0.6: 2, 1.0: 3}  # attention: number of episodes out of 21
_CUT = 0.38  # share of the conversations that may break off before the end
_MIN_QUESTIONS = 6  # no conversation breaks off after fewer questions


class MixedGuesser:
    """A mixture of attentive policies; the seed of an episode decides which of them plays it."""

    def __init__(self) -> None:
        self._guessers = {attention: Guesser(attentive(attention)) for attention in _SKILLS}

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A question for each request."""
        replies = []
        for request in requests:
            attention = Random(f"skill {request.seed}").choices([*_SKILLS], [*_SKILLS.values()])[0]
            replies += self._guessers[attention].act([request])
        return replies


def _breaks_off(request: Request) -> bool:
    chance = Random(f"cut {request.seed}")
    return chance.random() < _CUT and request.turn >= chance.randrange(_MIN_QUESTIONS, 20)


def _start(seed: int, index: int) -> Start:
    """Start an episode; each block of 158 episodes has every object once, in a new order."""
    names = [*place_of()]
    Random(f"words {seed} {index // len(names)}").shuffle(names)
    return Start(recording_seed(seed, index), {"word": names[index % len(names)]})


def _player(make: Callable[[], Policy]) -> Callable[[Mapping[str, Any]], Policy]:
    return lambda env: make()


PLAYERS = {
    "random": _player(lambda: Guesser(any_question)),
    "behaviour": _player(MixedGuesser),
    "optimal": _player(lambda: Guesser(most_telling)),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """Return the recipe of the dataset, which is the same for every oracle.

    Some conversations break off, as in the published data. Otherwise the published length (14.9) and success (.31)
    would contradict each other, since 69 % of 20 questions are already 13.8.
    """
    return Recording(policy=PLAYERS["behaviour"](env), start=_start, stop=_breaks_off)
