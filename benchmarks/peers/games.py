"""Our Wordle compared with TextArena's and GEM's: guesses per second, and what a seed decides.

Wordle is the one game that all three have with the same rules: five letters, six guesses, a letter is here, elsewhere
or not in the word at all. All sides hide words of our list and take the same guesses, each written as the environment
expects it. The other two would download word lists when they are created, and get our list instead. Colours must be the
same on all sides, for every guess and hidden word. Only `reset` and the steps of a game are timed.

verifiers has no game of its own: it plays TextArena's, so this is its speed and these are its seeds too. Their Twenty
Questions asks a language model at an endpoint for its answers, so it is no environment that runs by itself.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import nltk

import lmrl
from benchmarks.peers.beside import OURS, REPEATS, alternating, beside
from benchmarks.row import Row
from lmrl.envs.wordle.env import load_vocabulary, spaced

WORDS = load_vocabulary().words
# Both packages import this in place of NLTK's corpus, which would be downloaded.
_CORPUS = SimpleNamespace(words=lambda *_: list(WORDS))
with (
    mock.patch.object(nltk.corpus, "words", _CORPUS),
    mock.patch.object(nltk, "download"),
    mock.patch.object(nltk, "pos_tag"),
):
    from gem.envs.game_env.wordle import WordleEnv as GemWordle
    from textarena.envs.Wordle.env import WordleEnv as ArenaWordle

__all__ = ["Arena", "Gem", "Ours", "broken_laws", "run"]

PACKAGES = ("textarena", "gem-llm")
ARENA = "TextArena"
GEM = "GEM"
GUESSES = 6
GAMES = 1_000


class Ours:
    """Our Wordle, which tells copies of a letter apart as the others do; the published benchmark does not."""

    def __init__(self) -> None:
        self.env: Any = lmrl.make("wordle", counted=True)

    def reset(self, seed: int) -> str:
        """Start a game and return the hidden word."""
        _, info = self.env.reset(seed=seed)
        word: str = info["start"]["word"]
        return word

    def guess(self, word: str) -> tuple[str, bool]:
        """Guess a word and return the answer with the colours, and whether the game is over."""
        text, _, terminated, truncated, _ = self.env.step(word)
        return text, terminated or truncated

    def written(self, word: str) -> str:
        """Return the guess as the environment expects it."""
        return spaced(word) + "\n"

    def colors(self, text: str) -> str:
        """Return the colours of an answer, five of g, y, b."""
        return text.split("\n")[0].replace(" ", "")


class Gem(Ours):
    """GEM's Wordle with our words."""

    def __init__(self) -> None:
        with mock.patch.object(nltk, "download"):
            self.env = GemWordle(max_turns=GUESSES)

    def reset(self, seed: int) -> str:
        """Start a game and return the hidden word."""
        self.env.reset(seed=seed)
        word: str = self.env.secret_word.lower()
        return word

    def written(self, word: str) -> str:
        """Return the guess as the environment expects it."""
        return f"\\boxed{{{word}}}"

    def colors(self, text: str) -> str:
        """Return the colours of an answer, five of g, y, b. GEM writes them as a Python list."""
        shown = text.split("\n")[-1]
        return "".join(mark.lower().replace("x", "b") for mark in shown if mark in "GYX")


class _Dictionary:
    def __init__(self) -> None:
        self._words = frozenset(WORDS)

    def is_english_word(self, word: str) -> bool:
        return word in self._words


class Arena(Ours):
    """TextArena's Wordle with our words; without them it needs a tagger of parts of speech."""

    def __init__(self) -> None:
        self.env = object.__new__(ArenaWordle)
        self.env.word_length = 5
        self.env.num_guesses = GUESSES
        self.env.word_list, self.env.dictionary = list(WORDS), _Dictionary()

    def reset(self, seed: int) -> str:
        """Start a game and return the hidden word."""
        self.env.reset(num_players=1, seed=seed)
        word: str = self.env.state.game_state["secret_word"]
        return word

    def guess(self, word: str) -> tuple[str, bool]:
        """Guess a word. The returned text is empty, since `colors` reads the environment's own record."""
        over, _ = self.env.step(word)
        return "", over

    def written(self, word: str) -> str:
        """Return the guess as the environment expects it."""
        return f"[{word}]"

    def colors(self, text: str) -> str:
        """Return the colours of the last guess, five of g, y, b."""
        _, marks = self.env.state.game_state["guess_history"][-1]
        return "".join(marks).lower().replace("x", "b")


SIDES: Mapping[str, Callable[[], Ours]] = {OURS: Ours, ARENA: Arena, GEM: Gem}


def same_colors(games: int = 100) -> bool:
    """Return whether all sides colour the same guesses as the rules say."""
    chance = random.Random(0)
    sides = [make() for make in SIDES.values()]
    for number in range(games):
        guesses = chance.sample(WORDS, GUESSES - 1)
        for side in sides:
            hidden = side.reset(number)
            for word in guesses:
                if word == hidden:
                    break
                text, _ = side.guess(side.written(word))
                if side.colors(text) != _expected(hidden, word):
                    return False
    return True


def _expected(hidden: str, guess: str) -> str:
    """Return the colours by the newspaper's rules: right places first, then other letters as often as they are left."""
    left = [h for h, g in zip(hidden, guess, strict=True) if h != g]
    marks = []
    for h, g in zip(hidden, guess, strict=True):
        if h == g:
            marks.append("g")
        elif g in left:
            left.remove(g)
            marks.append("y")
        else:
            marks.append("b")
    return "".join(marks)


def guessing(side: Ours, games: int = GAMES) -> Callable[[], float]:
    """Return a way that measures guesses per second, resets included. Each call makes guesses that no side has seen."""
    chance = random.Random(1)

    def way() -> float:
        plan = [[side.written(word) for word in chance.sample(WORDS, GUESSES)] for _ in range(games)]
        count = 0
        began = perf_counter()
        for number, guesses in enumerate(plan):
            side.reset(number)
            for word in guesses:
                count += 1
                if side.guess(word)[1]:
                    break
        return count / (perf_counter() - began)

    return way


def broken_laws(make: Callable[[], Ours], seeds: Sequence[int] = range(20)) -> list[str]:
    """Return the laws of seeds that do not hold."""
    one = make()
    other = make()
    broken = []
    hidden = [one.reset(seed) for seed in seeds]
    if [one.reset(seed) for seed in seeds] != hidden or [other.reset(seed) for seed in seeds] != hidden:
        broken.append("the same seed hides the same word")
    if len(set(hidden)) < len(hidden) / 2:
        broken.append("other seeds hide other words")
    random.seed(5)
    expected = [random.random() for _ in range(3)]
    random.seed(5)
    drawn = []
    for seed in range(3):
        one.reset(seed)
        drawn.append(random.random())
    if drawn != expected:
        broken.append("Python's own generator stays as it was")
    return broken


def run(repeats: int = REPEATS) -> Iterator[Row]:
    """Rows for `python -m benchmarks.peers games`."""
    same = same_colors()
    yield Row("Wordle, colours by the rules, all sides", float(same), shown="yes" if same else "no")
    for name, make in SIDES.items():
        broken = broken_laws(make)
        shown = "none" if not broken else "; ".join(broken)
        yield Row(f"Wordle, laws of seeds that do not hold, {name}", len(broken), "", "lower", shown=shown)
    ways = {name: guessing(make()) for name, make in SIDES.items()}
    yield from beside("Wordle", "guesses/s", alternating(ways, repeats), {ARENA: ">= 1x", GEM: ">= 1x"})
