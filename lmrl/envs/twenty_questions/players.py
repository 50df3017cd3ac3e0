"""Scripted players of Twenty Questions, which know the table and read the texts, and the recipe of its dataset.

Source: LMRL-Gym, appendix C.6 and Table 1. There two language models talk, which no one can repeat exactly.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import Any

from lmrl.envs.task import Recording, least_of, recording_seed, turn_chance
from lmrl.envs.twenty_questions.env import QUESTIONS, guess_of
from lmrl.envs.twenty_questions.meaning import meaning
from lmrl.envs.twenty_questions.objects import Property, everything, properties, things
from lmrl.errors import UserError
from lmrl.types import PartnerRequest, Policy, Reply, Request, Start

__all__ = [
    "GROUPS",
    "PLAYERS",
    "Guesser",
    "MixedGuesser",
    "Strategy",
    "any_question",
    "attentive",
    "common_properties",
    "most_telling",
    "probe",
    "recording",
]

Strategy = Callable[[int, Request, Random], str]
"""From the set of objects that agree with all answers, and the rest of what is known, to a question."""

_CONSIDERED = 6
"""Properties that come to an attentive player's mind."""
_PLAINEST = 10
"""How many times as often as any other the first phrasing of a property is used."""
_HELD_OUT = -1
"""Place of the phrasing that no player uses: it asks a learned oracle what the data does not hold."""
_RASH = 0.15
"""Share of guesses among questions that use no answers."""
_GUESSES_LAST = 5
"""Questions that the random player keeps for guesses."""


class Guesser:
    """Plays a strategy.

    Args:
        strategy: see `attentive` and its neighbours.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A question for each request."""
        return [Reply(self._strategy(_agreeing(request), request, turn_chance(request))) for request in requests]


def attentive(attention: float) -> Strategy:
    """With that probability a question that uses the answers so far, else any question or, now and then, any guess.

    A question that uses the answers: of a few properties that come to mind the one that splits the objects left most
    evenly; a guess when there are one or two. The last question is a guess in any case.

    Raises:
        UserError: for a number that is no probability.
    """
    if not 0 <= attention <= 1:
        raise UserError(f"attention must be from 0 to 1, got {attention}")

    def ask(agreeing: int, request: Request, chance: Random) -> str:
        heeds = chance.random() < attention
        if request.turn == QUESTIONS - 1:
            return _guess(agreeing if heeds else everything(), chance)
        if heeds:
            return _telling(agreeing, chance)
        return _guess(everything(), chance) if chance.random() < _RASH else _asked(_thought_of(chance), chance)

    return ask


def any_question(agreeing: int, request: Request, chance: Random) -> str:
    """Any property that comes to mind, in any words, and at the end any guesses."""
    if request.turn >= QUESTIONS - _GUESSES_LAST:
        return _guess(everything(), chance)
    return f"{chance.choice(_thought_of(chance).phrasings[:_HELD_OUT])}\n"


def most_telling(agreeing: int, request: Request, chance: Random) -> str:
    """The property that is expected to tell most, or a guess where no property tells more; deterministic."""
    best = _best_split(agreeing)
    left = agreeing.bit_count()
    if best is None or left <= 2 or min(best.yes & agreeing, ~best.yes & agreeing, key=int.bit_count).bit_count() == 0:
        return guess_of(things()[(agreeing & -agreeing).bit_length() - 1])
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
    if best is not None and (best.yes & agreeing).bit_count() in (0, left):
        best = _best_split(agreeing)
    return _guess(agreeing, chance) if best is None else _asked(best, chance)


def _thought_of(chance: Random) -> Property:
    return chance.choices(common_properties(), cum_weights=_popularity())[0]


def _asked(item: Property, chance: Random) -> str:
    said = item.phrasings[:_HELD_OUT]
    return f"{said[max(0, chance.randrange(len(said) - 1 + _PLAINEST) - _PLAINEST + 1)]}\n"


def _guess(subset: int, chance: Random) -> str:
    members = [place for place, bit in enumerate(bin(subset)[:1:-1]) if bit == "1"]
    return guess_of(things()[chance.choice(members)])


@lru_cache(maxsize=1)
def common_properties() -> tuple[Property, ...]:
    """Return the properties that players ask about."""
    return tuple(item for item in properties() if item.common)


@lru_cache(maxsize=1)
def _popularity() -> tuple[float, ...]:
    """Running sums of weights: what tells more about an unknown object comes to mind more often."""
    return tuple(accumulate(_information(item.yes, everything()) ** 2 for item in common_properties()))


def _information(yes: int, among: int) -> float:
    share = (yes & among).bit_count() / among.bit_count()
    return -sum(part * math.log2(part) for part in (share, 1 - share) if part)


@lru_cache(maxsize=1 << 16)
def _best_split(agreeing: int) -> Property | None:
    """The property that splits these objects most evenly (the first of equals); None if no property splits them."""
    left = agreeing.bit_count()
    best = min(common_properties(), key=lambda item: abs(2 * (item.yes & agreeing).bit_count() - left))
    return best if 0 < (best.yes & agreeing).bit_count() < left else None


def _agreeing(request: Request) -> int:
    """The objects that agree with all answers or, if there is none (a noisy oracle), with as many as possible."""
    agreeing = everything()
    for action, text in zip(request.actions, request.observations[1:], strict=True):
        agreeing &= _told(action, text)
    return agreeing or _most_agreeing(request)


def _told(action: str, text: str) -> int:
    yes = meaning(action)
    return yes if text.startswith("Yes") else ~yes


def _most_agreeing(request: Request) -> int:
    told = [_told(action, text) for action, text in zip(request.actions, request.observations[1:], strict=True)]
    counts = [sum(one >> place & 1 for one in told) for place in range(len(things()))]
    return sum(1 << place for place, count in enumerate(counts) if count == max(counts))


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
    """Each object comes once in every 158 episodes, in an order drawn again each time."""
    every = [thing.name for thing in things()]
    Random(f"words {seed} {index // len(every)}").shuffle(every)
    return Start(recording_seed(seed, index), {"word": every[index % len(every)]})


_PLAYERS: dict[str, Callable[[], Policy]] = {
    "random": lambda: Guesser(any_question),
    "behaviour": MixedGuesser,
    "optimal": lambda: Guesser(most_telling),
}


def _player(make: Callable[[], Policy]) -> Callable[[Mapping[str, Any]], Policy]:
    return lambda env: make()


PLAYERS = {name: _player(make) for name, make in _PLAYERS.items()}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """The recipe, with any oracle.

    Some conversations break off, as in the published data: without that the published length (14.9) and success (.31)
    exclude each other, since 69 % of 20 questions are 13.8 already.
    """
    return Recording(policy=PLAYERS["behaviour"](env), start=_start, stop=_breaks_off)


GROUPS = ("phrasings of the data", "held-out phrasings")
"""Players use all phrasings of a property but the last one."""


def probe(seed: int) -> Iterator[tuple[str, PartnerRequest]]:
    """Endlessly many questions, in turn from each of `GROUPS`: any object, any property that players ask for."""
    chance = Random(f"probe {seed}")
    while True:
        for group in GROUPS:
            thing = chance.choice(things())
            item = chance.choice(common_properties())
            question = item.phrasings[-1] if group == GROUPS[1] else chance.choice(item.phrasings[:-1])
            facts = {"word": thing.name, "variants": thing.variants}
            yield group, PartnerRequest("twenty_questions", facts, (f"{question}\n",), (), chance.getrandbits(31))
