"""The guide for people who play Wordle: rules, invalid guesses, the known letters, and the word at the end."""

import re
from collections.abc import Mapping
from typing import Any

from lmrl.envs.task import Guide
from lmrl.envs.wordle.env import load_vocabulary, word_of
from lmrl.types import Request

__all__ = ["GUIDE", "known_letters"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_SPACED_WORD = re.compile(r"[a-z]( [a-z]){4}\n?")
_COLOURS = re.compile(r"[gyb]( [gyb]){4}\n?")


def known_letters(request: Request) -> dict[str, str]:
    """Return the best colour that each letter has got so far, ``g``, ``y`` or ``b``, without letters not tried."""
    known = dict[str, str]()
    for action, answer in zip(request.actions, request.observations[1:], strict=True):
        guess = word_of(action)
        colours = answer.replace(" ", "").strip()
        # The answer to an illegal guess is empty.
        if len(colours) != len(guess):
            continue
        for letter, colour in zip(guess, colours, strict=True):
            known[letter] = max(known.get(letter, "b"), colour, key="byg".index)
    return known


def _spelling(text: str) -> str:
    """Write a guess as a word. Colours stay apart; no word of the list consists of their letters alone."""
    is_guess = _SPACED_WORD.fullmatch(text) and not _COLOURS.fullmatch(text)
    return text.replace(" ", "") if is_guess else text


def _note(request: Request, env: Mapping[str, Any]) -> str:
    if not request.actions:
        return ""
    lines = []
    if not request.observations[-1].strip():
        count = len(load_vocabulary(env.get("vocab")).words)
        lines.append(f"{word_of(request.actions[-1])[:40] or 'An empty line'} is not in the list of {count} words.")
    # Group the alphabet by the best colour of each letter; "" stands for letters that were not tried.
    known = known_letters(request)
    letters: dict[str, list[str]] = {"g": [], "y": [], "b": [], "": []}
    for letter in _LETTERS:
        letters[known.get(letter, "")].append(letter)
    for colour, words in (("g", "at its place"), ("y", "elsewhere in the word"), ("b", "not in the word")):
        if letters[colour]:
            lines.append(f"{words}: {' '.join(letters[colour])}")
    if known:
        lines.append(f"not tried: {''.join(letters[''])}")
    return "\n".join(lines)


def _solution(info: Mapping[str, Any]) -> str:
    return f"The word was {info['start']['word']}."


def _slip(action: str, env: Mapping[str, Any]) -> str:
    words = load_vocabulary(env.get("vocab")).words
    word = word_of(action)
    return "" if word in words else f"{word[:40]} is not in the list of {len(words)} words and would cost a try."


GUIDE = Guide(
    "Find a hidden word of five letters in six guesses. A guess must be a word of the list that the game knows "
    "(lmrl play wordle --actions prints it). Each is answered by five colours: g (green) the letter is at its place, "
    "y (yellow) it is elsewhere in the word, b (black) it is not in the word. A guess that is not in the list costs a "
    "try and is answered by an empty line. Each guess costs 1, the right one nothing.",
    "Five letters, with or without spaces between them.",
    ("paper", "y y g y b"),
    spelling=_spelling,
    note=_note,
    solution=_solution,
    slip=_slip,
)
