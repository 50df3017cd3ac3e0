"""Wordle: find a hidden word in six guesses, told after each which letters are right."""

from functools import lru_cache
from typing import Any, ClassVar

from lmrl.envs.base import TextEnv, Turn
from lmrl.envs.wordle.words import LENGTH, load_vocabulary
from lmrl.errors import UserError

__all__ = ["TRIES", "Wordle", "colors", "spaced", "word_of"]

TRIES = 6
_HEADER = "Wordle:\n"
_SOLVED = "g" * LENGTH


class Wordle(TextEnv):
    r"""The word game, letters and colours spaced: ``c r a n e\n`` is answered by ``b y g b b\n``.

    ``g``: the letter is here; ``y``: it is elsewhere in the word; ``b``: it is not in the word. A guess outside of the
    vocabulary is illegal, is answered by an empty line and costs a try. Each guess costs 1, the right one nothing. The
    right guess or the sixth terminates. The published benchmark draws the hidden word anew among all words that agree
    with what was said; for a player this is the same as one word drawn at the start, which is what happens here.

    ``info["start"]["word"]`` is the hidden word. Source: LMRL-Gym, section 4 and appendix C.

    Args:
        vocab: path of a word list; None: the 431 words that come with the package.
        counted: copies of a letter are told apart, as in the newspaper's game: of ``e`` twice in the guess and once in
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
        self.counted, self.bad_word_reward = counted, float(bad_word_reward)
        self.return_range = (TRIES * min(-1.0, self.bad_word_reward), 0.0)
        self._word, self._tries = "", 0
        self._said: list[str] = []

    def render(self) -> str:
        """All guesses so far with their colours."""
        return "".join([_HEADER, *self._said])

    def legal_actions(self) -> list[str]:
        """The whole vocabulary."""
        return [spaced(word) for word in self.vocabulary.words]

    def _begin(self, options: dict[str, Any]) -> tuple[str, str, dict[str, Any], dict[str, Any]]:
        words = self.vocabulary.words
        self._word = options["word"] if "word" in options else words[int(self.np_random.integers(len(words)))]
        if self._word not in self.vocabulary.index:
            raise UserError(f"word must be one of the {len(words)} words of the vocabulary, got {self._word!r:.60}")
        self._tries, self._said = 0, []
        return _HEADER, self._word, {"word": self._word}, {}

    def _turn(self, action: str) -> Turn:
        self._tries += 1
        guess = word_of(action)
        legal = guess in self.vocabulary.index
        answer = colors(guess, self._word, self.counted) if legal else ""
        solved = answer == _SOLVED
        reward = 0.0 if solved else -1.0 if legal else self.bad_word_reward
        text = spaced(answer)
        self._said += (action if action.endswith("\n") else f"{action}\n", text)
        return text, reward, solved or self._tries == TRIES, False, {"illegal": not legal, "success": solved}


def word_of(action: str) -> str:
    """The guess in an action: its ends stripped and all spaces removed; capitals stay what they are."""
    return action.strip().replace(" ", "")


def spaced(letters: str) -> str:
    r"""A line of letters or colours: ``c r a n e\n``."""
    return " ".join(letters) + "\n"


@lru_cache(maxsize=1 << 16)
def colors(guess: str, word: str, counted: bool = False) -> str:
    """The colours of a guess, e.g. ``bygbb``."""
    if not counted:
        return "".join("g" if a == b else "y" if a in word else "b" for a, b in zip(guess, word, strict=True))
    spare = [b for a, b in zip(guess, word, strict=True) if a != b]
    found = []
    for a, b in zip(guess, word, strict=True):
        color = "g" if a == b else "y" if a in spare else "b"
        if color == "y":
            spare.remove(a)
        found.append(color)
    return "".join(found)
