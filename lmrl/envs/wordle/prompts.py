"""How Wordle is put to a chat model that plays."""

from collections.abc import Mapping
from typing import Any

from lmrl.envs.hooks import ChatPrompt
from lmrl.envs.wordle.env import spaced
from lmrl.envs.wordle.words import load_vocabulary

__all__ = ["CHAT"]


def _vocabulary(env: Mapping[str, Any]) -> str:
    words = load_vocabulary(env.get("vocab")).words
    return "The vocabulary: " + ", ".join(spaced(word).strip() for word in words)


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
    appendix=_vocabulary,
)
