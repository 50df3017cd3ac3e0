"""Wordle: find a hidden word in six guesses, each answered by a colour for each letter. Also its vocabularies."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from lmrl.envs.base import Opening, TextEnv, Turn
from lmrl.envs.task import ChatPrompt, TaskTokens
from lmrl.errors import UserError

__all__ = [
    "CHAT", "LENGTH", "TRIES", "Vocabulary", "Wordle", "colors", "load_vocabulary", "spaced", "tokens", "word_of",
]  # fmt: skip

LENGTH = 5
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class Vocabulary:
    """Words in their order, and for each feedback the set of words that agree with it.

    A set of words is one integer: bit ``i`` stands for word ``i``. So the words that agree with several answers are the
    ``&`` of their integers, which takes well under a microsecond for hundreds of words.
    """

    def __init__(self, words: Iterable[str]) -> None:
        """Index the words, which `load_vocabulary` has checked."""
        self.words = tuple(words)
        self.index: dict[str, int] = {}
        self.everything = (1 << len(self.words)) - 1
        # _at[i][letter]: the words with this letter at position i.
        self._at = [dict.fromkeys(_LETTERS, 0) for _ in range(LENGTH)]
        # _copies[n][letter]: the words with at least n copies of this letter; none has more than LENGTH.
        self._copies = [dict.fromkeys(_LETTERS, 0) for _ in range(LENGTH + 2)]
        self._copies[0] = dict.fromkeys(_LETTERS, self.everything)
        self._agreeing: dict[tuple[str, str, bool], int] = {}
        for index, word in enumerate(self.words):
            self.index[word] = index
            for position, letter in enumerate(word):
                self._at[position][letter] |= 1 << index
                self._copies[word[: position + 1].count(letter)][letter] |= 1 << index

    def agreeing(self, guess: str, colors: str, counted: bool) -> int:
        """Return the set of words that would have given these colours, e.g. ``("crane", "bygbb")``.

        Args:
            guess: five letters a to z, in the vocabulary or not.
            colors: five of ``g``, ``y``, ``b``.
            counted: distinguish copies of a letter, as in the newspaper's game.
        """
        key = (guess, colors, counted)
        if key in self._agreeing:
            return self._agreeing[key]
        agreeing = self.everything
        # A green letter stands at its position; a yellow or black one does not.
        for position, (letter, color) in enumerate(zip(guess, colors, strict=True)):
            here = self._at[position][letter]
            agreeing &= here if color == "g" else ~here
        # Every coloured copy of a letter is in the word. If another copy is black, there are no more.
        for letter in set(guess):
            same = [color for other, color in zip(guess, colors, strict=True) if other == letter]
            coloured = len(same) - same.count("b") if counted else int(same[0] != "b")
            agreeing &= self._copies[coloured][letter]
            if "b" in same:
                agreeing &= ~self._copies[coloured + 1][letter]
        self._agreeing[key] = agreeing
        return agreeing

    def pick(self, subset: int, number: int) -> str:
        """Return word ``number`` (from 0) of a set, in the order of the vocabulary."""
        # Binary search for bit ``number`` of the set: halve the range that holds it.
        low = 0
        high = len(self.words)
        while high - low > 1:
            middle = (low + high) // 2
            below = (subset >> low & (1 << middle - low) - 1).bit_count()
            if number < below:
                high = middle
            else:
                low = middle
                number = number - below
        return self.words[low]

    def members(self, subset: int) -> list[int]:
        """Return the indices of a set's words in the vocabulary."""
        return [index for index, bit in enumerate(bin(subset)[:1:-1]) if bit == "1"]


@lru_cache(maxsize=8)
def load_vocabulary(path: str | None = None) -> Vocabulary:
    """Read a word list, one word per line; None: the 431 words that come with the package.

    Raises:
        UserError: for a missing or empty file, a word that is not five letters a to z, or one that comes twice. The
            message names the line.
    """
    source = files("lmrl.envs.wordle") / "vocabulary.txt" if path is None else Path(path)
    if not source.is_file():
        raise UserError(f"vocab must be a file with one word per line, there is none at {path!r}")
    where = f"vocab {source}"
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: is not UTF-8 text ({error})") from error
    first: dict[str, int] = {}  # the line of each word
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


TRIES = 6
_HEADER = "Wordle:\n"
_SOLVED = "g" * LENGTH


class Wordle(TextEnv):
    r"""The word game, letters and colours spaced: ``c r a n e\n`` is answered by ``b y g b b\n``.

    ``g``: the letter is here; ``y``: it is elsewhere in the word; ``b``: it is not in the word. A guess outside of the
    vocabulary is illegal, is answered by an empty line and costs a try. Each guess costs 1, the right one nothing. The
    right guess or the sixth terminates. The published benchmark draws the hidden word again after each turn, among all
    words that agree with the answers. For a player this is the same as one word drawn at the start, as done here.

    ``info["start"]["word"]`` is the hidden word. Source: LMRL-Gym, section 4 and appendix C.

    Args:
        vocab: path of a word list; None: the 431 words that come with the package.
        counted: distinguish copies of a letter, as in the newspaper's game: of ``e`` twice in the guess and once in
            the word only one is coloured. False, as published: every copy is.
        bad_word_reward: reward of an illegal guess; the published evaluation has -1, some of its trainings -10.
        render_mode: see `TextEnv`.

    Raises:
        UserError: for a list that is none, or a positive ``bad_word_reward``.
    """

    reset_options: ClassVar[tuple[str, ...]] = ("word",)

    def __init__(
        self,
        vocab: str | None = None,
        counted: bool = False,
        bad_word_reward: float = -1.0,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(render_mode)
        if not bad_word_reward <= 0:
            raise UserError(f"bad_word_reward must be at most 0, got {bad_word_reward}")
        self.vocabulary = load_vocabulary(vocab)
        self.counted = counted
        self.bad_word_reward = float(bad_word_reward)
        self.return_range = (TRIES * min(-1.0, self.bad_word_reward), 0.0)
        self._word = ""
        self._tries = 0
        self._lines: list[str] = []  # guesses and answers in turn

    def render(self) -> str:
        """Return all guesses so far with their colours."""
        return "".join([_HEADER, *self._lines])

    def legal_actions(self) -> list[str]:
        """Return the whole vocabulary."""
        return list(map(spaced, self.vocabulary.words))

    def begin(self, options: dict[str, Any]) -> Opening:
        words = self.vocabulary.words
        word = options["word"] if "word" in options else words[int(self.np_random.integers(len(words)))]
        # Checked before anything changes, so that a refused reset leaves the running game as it is.
        if not isinstance(word, str) or word not in self.vocabulary.index:
            raise UserError(f"word must be one of the {len(words)} words of the vocabulary, got {word!r:.60}")
        self._word = word
        self._tries = 0
        self._lines = []
        return Opening(_HEADER, task_id=self._word, start={"word": self._word})

    def turn(self, action: str) -> Turn:
        self._tries += 1
        guess = word_of(action)
        legal = guess in self.vocabulary.index
        answer = colors(guess, self._word, self.counted) if legal else ""
        solved = answer == _SOLVED
        if solved:
            reward = 0.0
        elif legal:
            reward = -1.0
        else:
            reward = self.bad_word_reward
        text = spaced(answer)
        self._lines += (action if action.endswith("\n") else f"{action}\n", text)
        over = solved or self._tries == TRIES
        return Turn(text, reward, over, truncated=False, info={"illegal": not legal, "success": solved})


def word_of(action: str) -> str:
    """Return the guess in an action: ends stripped, all spaces removed, capitals as they are."""
    return action.strip().replace(" ", "")


def spaced(letters: str) -> str:
    r"""Return a line of letters or colours with spaces between: ``c r a n e\n``."""
    return " ".join(letters) + "\n"


@lru_cache(maxsize=1 << 16)
def colors(guess: str, word: str, counted: bool = False) -> str:
    """Return the colours of a guess, e.g. ``bygbb``."""
    # The letters that a yellow may refer to: as published every letter of the word, in the newspaper's game every copy
    # once, without those that are green.
    spare = list(word)
    if counted:
        for letter, hidden in zip(guess, word, strict=True):
            if letter == hidden:
                spare.remove(letter)
    answer = ""
    for letter, hidden in zip(guess, word, strict=True):
        if letter == hidden:
            answer += "g"
        elif letter in spare:
            answer += "y"
            if counted:
                spare.remove(letter)
        else:
            answer += "b"
    return answer


def _appendix(env: Mapping[str, Any]) -> str:
    words = load_vocabulary(env.get("vocab")).words
    vocabulary = "The vocabulary: " + ", ".join(spaced(word).strip() for word in words)
    if not env.get("counted"):
        return vocabulary
    copies = (
        "Of several copies of a letter in a guess, only as many are green or yellow as the word has; others are black."
    )
    return f"{copies}\n\n{vocabulary}"


CHAT = ChatPrompt(
    "an expert wordle player",
    """\
Wordle: find a hidden word of five letters in at most six guesses. A guess is a word of the vocabulary below, its
letters separated by spaces. Each guess is answered by a colour for each letter:

g (green): the letter is in the word, at this place
y (yellow): the letter is in the word, at another place
b (black): the letter is not in the word

A guess that is not in the vocabulary is answered by an empty line and lost. Every guess costs 1, the right one nothing.
So each guess should agree with all answers so far.""",
    key="guess",
    thought=True,
    temperature=0.0,
    games=64,
    header="Wordle:",
    appendix=_appendix,
)


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """Make a token of each word of the vocabulary and each line of colours, with its line break."""
    words = load_vocabulary(env.get("vocab")).words
    answers = map("".join, product("gyb", repeat=LENGTH))
    parts: dict[str, tuple[str, ...]] = {"Wordle:\n": ("Wordle",)}
    for kind, texts in (("letter", words), ("color", answers)):
        for text in texts:
            # The parts of a token are its letters (or colours) at their positions.
            parts[spaced(text)] = tuple(f"{kind} {i} {c}" for i, c in enumerate(text))
    return TaskTokens(parts)
