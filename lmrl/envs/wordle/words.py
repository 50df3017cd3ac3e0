"""Wordle's vocabularies: lists of five-letter words, and which of them agree with what has been said."""

from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from lmrl.errors import UserError

__all__ = ["LENGTH", "Vocabulary", "load_vocabulary"]

LENGTH = 5
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Vocabulary:
    """Words in their order, and for each feedback the set of words that agree with it.

    A set of words is one integer: bit ``i`` stands for word ``i``. So knowledge is an ``&`` of integers, which takes
    well under a microsecond for hundreds of words and a few for thousands, and nothing is ever copied or searched.
    """

    def __init__(self, words: Iterable[str]) -> None:
        """Index the words, which `load_vocabulary` has checked."""
        self.words = tuple(words)
        self.index = {word: place for place, word in enumerate(self.words)}
        self.everything = (1 << len(self.words)) - 1
        self._at = [dict.fromkeys(_LETTERS, 0) for _ in range(LENGTH)]
        self._copies = [dict.fromkeys(_LETTERS, 0) for _ in range(LENGTH + 2)]  # with at least so many of a letter
        self._copies[0] = dict.fromkeys(_LETTERS, self.everything)
        self._agreeing: dict[tuple[str, str, bool], int] = {}
        for place, word in enumerate(self.words):
            for position, letter in enumerate(word):
                self._at[position][letter] |= 1 << place
                self._copies[word[: position + 1].count(letter)][letter] |= 1 << place

    def agreeing(self, guess: str, colors: str, counted: bool) -> int:
        """The words that would have given these colours, e.g. ``("crane", "bygbb")``; letters a to z only.

        Args:
            guess: five letters, in the vocabulary or not.
            colors: five of ``g``, ``y``, ``b``.
            counted: copies of a letter are told apart, as in the newspaper's game.
        """
        key = (guess, colors, counted)
        if key not in self._agreeing:
            self._agreeing[key] = self._work_out(guess, colors, counted)
        return self._agreeing[key]

    def _work_out(self, guess: str, colors: str, counted: bool) -> int:
        left = self.everything
        for position, (letter, color) in enumerate(zip(guess, colors, strict=True)):
            here = self._at[position][letter]
            left &= here if color == "g" else ~here
        for letter in set(guess):
            same = [color for other, color in zip(guess, colors, strict=True) if other == letter]
            known = len(same) - same.count("b") if counted else int(same[0] != "b")
            left &= self._copies[known][letter]
            if "b" in same:
                left &= ~self._copies[known + 1][letter]
        return left

    def pick(self, subset: int, number: int) -> str:
        """Word ``number`` (from 0) of a set, in the order of the vocabulary."""
        low, high = 0, len(self.words)
        while high - low > 1:  # halve the range that holds the wanted bit
            middle = (low + high) // 2
            below = (subset >> low & (1 << middle - low) - 1).bit_count()
            if number < below:
                high = middle
            else:
                low, number = middle, number - below
        return self.words[low]

    def members(self, subset: int) -> list[int]:
        """The places of a set's words in the vocabulary."""
        return [place for place, bit in enumerate(bin(subset)[:1:-1]) if bit == "1"]


@lru_cache(maxsize=8)
def load_vocabulary(path: str | None = None) -> Vocabulary:
    """Read a word list, one word per line; None: the 431 words that come with the package.

    Raises:
        UserError: for a missing or empty file, a word that is not five letters a to z, or one that comes twice; it
            names the line.
    """
    source = files("lmrl.envs.wordle") / "vocabulary.txt" if path is None else Path(path)
    if not source.is_file():
        raise UserError(f"vocab must be a file with one word per line, there is none at {path!r}")
    where = f"vocab {source}"
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: is not UTF-8 text ({error})") from error
    first: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        word = line.strip()
        if len(word) != LENGTH or not set(word) <= set(_LETTERS):
            raise UserError(
                f"vocab {path}, line {number}: a word must be {LENGTH} letters from a to z, got {word!r:.60}"
            )
        if word in first:
            raise UserError(f"vocab {path}, line {number}: {word!r} is on line {first[word]} already")
        first[word] = number
    if not first:
        raise UserError(f"{where}: holds no words")
    return Vocabulary(first)
