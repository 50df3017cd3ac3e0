"""Drawings of a game of Wordle: a row of tiles for each guess, and the alphabet with the best colour of each letter."""

from rich.text import Text

from lmrl.envs.task import Picture
from lmrl.envs.wordle.env import word_of
from lmrl.envs.wordle.guide import known_letters
from lmrl.errors import printable
from lmrl.types import Request

__all__ = ["WordlePicture", "draw_wordle"]

_TILES = {"g": "bold white on #40803b", "y": "bold white on #8a6d00", "b": "bold white on #5c5f62"}
_NO_WORD = "bold red strike"
_MOST_LETTERS = 40  # of an illegal guess, which a model may make as long as it likes


class WordlePicture(Picture):
    """The picture of a game; it shows only what the texts tell."""

    kind = "wordle"
    script = "lmrl.envs.wordle:picture.js"
    style = "lmrl.envs.wordle:picture.css"

    def terminal(self, request: Request) -> Text:
        return draw_wordle(request)


def draw_wordle(request: Request) -> Text:
    """Draw the guesses so far, and the alphabet with the best colour of each letter."""
    drawn = Text()
    known = known_letters(request)
    for action, answer in zip(request.actions, request.observations[1:], strict=True):
        guess = word_of(action)
        colours = answer.replace(" ", "").strip()
        # The answer to an illegal guess is empty.
        if len(colours) != len(guess):
            drawn.append(printable(guess.upper()[:_MOST_LETTERS]), _NO_WORD)
            drawn.append("  not in the list\n", "red")
            continue
        for letter, colour in zip(guess, colours, strict=True):
            drawn.append(f" {letter.upper()} ", _TILES[colour])
            drawn.append(" ")
        drawn.append("\n")
    for letter in "abcdefghijklmnopqrstuvwxyz":
        drawn.append(letter, _TILES[known[letter]] if letter in known else "")
    return drawn
