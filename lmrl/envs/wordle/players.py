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
    "OPENERS", "PLAYERS", "PROB_SMART", "WordlePlayer", "best_guess", "mixture", "opener", "recording", "repeated",
    "wrong",
]  # fmt: skip

OPENERS = (
    "opera tears soare roate raise arose earls laser reals aloes reais slate sauce slice "
    "shale saute share sooty shine suite crane adieu audio stare roast ratio arise tales"
).split()
"""First guesses that people recommend."""

Strategy = Callable[[Vocabulary, int, Request, Random, bool], str]
"""A function from the vocabulary, the set of words that agree with all feedback, the request, a generator and
``counted`` (see `Vocabulary.agreeing`) to a guess."""


class WordlePlayer:
    """A player with a `Strategy`.

    Args:
        strategy: see `mixture`, `opener`, `repeated`, `wrong` and `best_guess`.
        vocab: path of the word list, as for the environment.
        counted: the rule of colours, as for the environment.
    """

    def __init__(self, strategy: Strategy, vocab: str | None = None, counted: bool = False) -> None:
        self._strategy = strategy
        self._counted = counted
        self._vocabulary = load_vocabulary(vocab)
        self._known: dict[tuple[str, str], int] = {}  # from guess and answer (texts) to the words that agree

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """Return a guess for each request."""
        return [Reply(spaced(self._guess(request))) for request in requests]

    def _guess(self, request: Request) -> str:
        words = self._vocabulary
        known = self._known
        agreeing = words.everything
        for action, text in zip(request.actions, request.observations[1:], strict=True):
            if (action, text) not in known:
                # The answer to an illegal guess is empty and tells nothing: -1 has all bits set.
                answer = word_of(text)
                known[action, text] = words.agreeing(word_of(action), answer, self._counted) if answer else -1
            agreeing &= known[action, text]
        # Nothing agrees if the hidden word is not in this player's vocabulary: then it may be any word.
        return self._strategy(words, agreeing or words.everything, request, turn_chance(request), self._counted)


def mixture(prob_smart: float) -> Strategy:
    """Guess a random word that agrees with all feedback with that probability, else any word (as in the paper).

    Raises:
        UserError: for a number that is no probability.
    """
    if not 0 <= prob_smart <= 1:
        raise UserError(f"prob_smart must be from 0 to 1, got {prob_smart}")

    def guess(words: Vocabulary, agreeing: int, request: Request, chance: Random, counted: bool) -> str:
        # Without a draw where the probability is 0 or 1.
        smart = prob_smart == 1 or (prob_smart > 0 and chance.random() < prob_smart)
        return _any(words, agreeing if smart else words.everything, chance)

    return guess


def opener(words: Vocabulary, agreeing: int, request: Request, chance: Random, counted: bool) -> str:
    """Guess one of `OPENERS` that agrees, uniformly; if none does, any word that agrees."""
    known = [word for word in OPENERS if word in words.index and agreeing >> words.index[word] & 1]
    return chance.choice(known) if known else _any(words, agreeing, chance)


def repeated(words: Vocabulary, agreeing: int, request: Request, chance: Random, counted: bool) -> str:
    """Guess any word, and then always the same."""
    return word_of(request.actions[0]) if request.actions else _any(words, words.everything, chance)


def wrong(words: Vocabulary, agreeing: int, request: Request, chance: Random, counted: bool) -> str:
    """Guess a word that disagrees with the feedback, as soon as there is one."""
    return _any(words, words.everything & ~agreeing or words.everything, chance)


def best_guess(words: Vocabulary, agreeing: int, request: Request, chance: Random, counted: bool) -> str:
    """Guess the consistent word whose colours have the highest expected information (the first of equals).

    This looks one step ahead, which is near the best possible, and is deterministic.
    """
    return _most_telling(words, agreeing, counted)


@lru_cache(maxsize=1 << 16)
def _most_telling(words: Vocabulary, agreeing: int, counted: bool) -> str:
    candidates = [words.words[index] for index in words.members(agreeing)]
    best = ""
    least = math.inf
    for guess in candidates:
        # The answers split the candidates into parts of n words. All guesses split the same set, so the largest entropy
        # is the smallest sum of n log n. It is rounded, so that ties do not depend on the order of summation.
        parts = Counter(colors(guess, word, counted) for word in candidates)
        total = round(sum(n * math.log(n) for n in parts.values()), 9)
        if total < least:
            least = total
            best = guess
    return best


def _any(words: Vocabulary, subset: int, chance: Random) -> str:
    # Both branches are one uniform draw; the first needs no search for the bit.
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
    """Return the recipe of the dataset, the same for every vocabulary."""
    return Recording(policy=PLAYERS["behaviour"](env), start=lambda seed, index: Start(recording_seed(seed, index)))
