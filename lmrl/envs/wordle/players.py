"""Scripted players of Wordle, which know the vocabulary and read the game's texts, and the recipe of its dataset.

Source: LMRL-Gym, appendix C, and the reference's data generator (66 % uniform guesses, 34 % consistent ones; its
default of .33 gives the published length 4.82, success .70 and return -4.12).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from lmrl.envs.task import Recording, recording_seed, turn_chance
from lmrl.envs.wordle.env import Vocabulary, colors, load_vocabulary, spaced, word_of
from lmrl.errors import UserError
from lmrl.types import Policy, Reply, Request, Start

__all__ = [
    "OPENERS",
    "PLAYERS",
    "PROB_SMART",
    "WordlePlayer",
    "best_guess",
    "mixture",
    "opener",
    "recording",
    "repeated",
    "wrong",
]

OPENERS = (
    "opera tears soare roate raise arose earls laser reals aloes reais slate sauce slice "
    "shale saute share sooty shine suite crane adieu audio stare roast ratio arise tales"
).split()
"""First guesses that people recommend."""

Strategy = Callable[[Vocabulary, int, Request, Random, bool], str]
"""From the vocabulary, the set of words that agree with all feedback, and the rest of what is known, to a guess."""


class WordlePlayer:
    """Plays a strategy.

    Args:
        strategy: see `mixture` and its neighbours.
        vocab: path of the word list, as for the environment.
        counted: how the environment colours.
    """

    def __init__(self, strategy: Strategy, vocab: str | None = None, counted: bool = False) -> None:
        self._strategy = strategy
        self._counted = counted
        self._vocabulary = load_vocabulary(vocab)
        self._known: dict[tuple[str, str], int] = {}

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A guess for each request."""
        return [Reply(spaced(self._guess(request))) for request in requests]

    def _guess(self, request: Request) -> str:
        words = self._vocabulary
        known = self._known
        agreeing = words.everything
        for said in zip(request.actions, request.observations[1:], strict=True):
            if said not in known:
                known[said] = self._told(*said)
            agreeing &= known[said]
        # Nothing agrees if the hidden word is none of ours: then anything may be it.
        return self._strategy(words, agreeing or words.everything, request, turn_chance(request), self._counted)

    def _told(self, action: str, text: str) -> int:
        """The words that agree with one answer; that to an illegal guess is empty and tells nothing."""
        answer = word_of(text)
        return self._vocabulary.agreeing(word_of(action), answer, self._counted) if answer else -1


def mixture(prob_smart: float) -> Strategy:
    """With that probability a uniformly random word that agrees with all feedback, else any word, as in the paper.

    Raises:
        UserError: for a number that is no probability.
    """
    if not 0 <= prob_smart <= 1:
        raise UserError(f"prob_smart must be from 0 to 1, got {prob_smart}")

    def guess(words: Vocabulary, agreeing: int, request: Request, chance: Random, counted: bool) -> str:
        smart = prob_smart == 1 or (prob_smart > 0 and chance.random() < prob_smart)
        return _any(words, agreeing if smart else words.everything, chance)

    return guess


def opener(words: Vocabulary, agreeing: int, request: Request, chance: Random, counted: bool) -> str:
    """One of `OPENERS` that agrees, uniformly; if none does, any word that agrees."""
    known = [word for word in OPENERS if word in words.index and agreeing >> words.index[word] & 1]
    return chance.choice(known) if known else _any(words, agreeing, chance)


def repeated(words: Vocabulary, agreeing: int, request: Request, chance: Random, counted: bool) -> str:
    """Any word, and then always the same."""
    return word_of(request.actions[0]) if request.actions else _any(words, words.everything, chance)


def wrong(words: Vocabulary, agreeing: int, request: Request, chance: Random, counted: bool) -> str:
    """A word that disagrees with the feedback, as soon as there is one."""
    return _any(words, words.everything & ~agreeing or words.everything, chance)


def best_guess(words: Vocabulary, agreeing: int, request: Request, chance: Random, counted: bool) -> str:
    """Return the consistent word whose colours have the highest expected information (the first of equals).

    One step of looking ahead: near the best possible, and deterministic.
    """
    return _most_telling(words, agreeing, counted)


@lru_cache(maxsize=1 << 16)
def _most_telling(words: Vocabulary, agreeing: int, counted: bool) -> str:
    left = [words.words[place] for place in words.members(agreeing)]
    # All guesses split the same set, so the largest entropy is the smallest sum of n log n over the parts.
    return min(left, key=lambda guess: _sum_n_log_n(Counter(colors(guess, word, counted) for word in left)))


def _sum_n_log_n(parts: Counter[str]) -> float:
    # Rounded, so that ties are ties and not a matter of the order of summation.
    return round(sum(n * math.log(n) for n in parts.values()), 9)


def _any(words: Vocabulary, subset: int, chance: Random) -> str:
    if subset == words.everything:
        return chance.choice(words.words)
    return words.pick(subset, chance.randrange(subset.bit_count()))


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
    return Recording(policy=PLAYERS["behaviour"](env), start=lambda seed, index: Start(recording_seed(seed, index)))
