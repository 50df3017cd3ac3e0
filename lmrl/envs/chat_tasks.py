"""What a chat model is told about each task, and how it is asked.

Temperature, how much of the past is shown, examples and the form of the reply are those of the paper's GPT-4 baselines
where their code says so (Abdulhai et al. 2025, appendix; scripts ``*/gpt4/*``): maze, Wordle, chess and endgames. For
the other tasks the temperature is the endpoint's usual one, 1. The paper gives no example for Twenty Questions and has
no scripts for Text-Nav, Guess My City and Car Dealer; here each task has an example. Errata kept out: of the maze's
actions "move down" was missing and "move up" came twice; the chess examples were spelt otherwise than the positions.
"""

from collections.abc import Mapping
from typing import Any

from lmrl.envs.chess.env import plain_fen, plain_san
from lmrl.envs.task import ChatTask
from lmrl.envs.wordle.env import spaced
from lmrl.envs.wordle.words import load_vocabulary

__all__ = ["CHAT_TASKS"]


def _vocabulary(env: Mapping[str, Any]) -> str:
    words = load_vocabulary(env.get("vocab")).words
    return "The vocabulary: " + ", ".join(spaced(word).strip() for word in words)


_MAZE = """\
Objective: reach the goal of a maze in as few steps as possible.

Positions are given as (row, column), each number with a space between its digits: row 1 0 is row ten. Moving up takes
1 from the row, moving down adds 1; moving left takes 1 from the column, moving right adds 1. A wall leaves you where
you are. Every step costs 1, the one that reaches the goal nothing, and any text that is no action costs 4.

The actions: "move left", "move right", "move up", "move down"."""

_MAZE_PO = """\
Objective: reach the goal of a maze in as few steps as possible. You are told the walls around you, but neither where
you are nor where the goal is: remember the way that you have gone.

A wall leaves you where you are. Every step costs 1, the one that reaches the goal nothing, and any text that is no
action costs 4.

The actions: "move left", "move right", "move up", "move down"."""

_TEXT_NAV = """\
You play a text adventure in a house. Objective: take the stale food from the table in the living room, put it into the
fridge in the kitchen, and close the fridge, within fifteen commands. Do not eat it.

Your action is one of the admissible commands that the game lists, in the same words. Any other text costs a turn."""

_WORDLE = """\
Wordle: find a hidden word of five letters in at most six guesses. A guess is a word of the vocabulary below, its
letters separated by spaces. Each guess is answered by a colour for each letter:

g (green): the letter is in the word, at this place
y (yellow): the letter is in the word, at another place
b (black): the letter is not in the word

A guess that is not in the vocabulary is answered by an empty line and lost. Every guess costs 1, the right one nothing.
So each guess should agree with all answers so far."""

_CHESS = """\
You play White in a game of chess against an engine. Each position is given in FEN. Your action is a legal move in SAN,
such as "Nf3", "exd5", "O-O" or "Qxf7#". Giving mate earns 1, being mated costs 1, and any text that is no legal move
costs 1 and leaves the board as it is."""

_ENDGAMES = """\
You play White in a chess endgame against a lone king. Each position is given in FEN. Your action is a legal move in
SAN, such as "Kd5", "Rh7+" or "Qb7#". Giving mate earns 1, a draw nothing, and any text that is no legal move costs 1
and leaves the board as it is. Mate in as few moves as you can; beware of stalemate."""

_TWENTY_QUESTIONS = """\
Twenty Questions: the oracle thinks of an object, a common noun such as an animal, a fruit, a tool or a piece of
clothing. Find out which by at most twenty questions that are answered by "Yes." or "No.". You win by asking whether it
is that object, such as "Is it a cat?". Every question costs 1, the one that wins nothing. Ask first what halves the
possibilities."""

_GUESS_CITY = """\
Guess My City: the other person lives in one of the hundred largest cities of the world. Find out which by at most
twenty questions. A question may be open ("What do people eat?") or of the yes-or-no kind. You win by naming the city,
such as "Is it Cairo?". Every question costs 1, the one that wins nothing."""

_CAR_DEALER = """\
You sell cars. The buyer wants a brand, a type and features, has a budget, and will not tell all of it at once. Greet
them, find out what they want, offer a car with its list price (MSRP), and agree on a price. You earn the price that the
buyer pays, in thousands of dollars, and nothing if they leave. Buyers leave who are bored, asked too much or offered
what they do not want. Say one short line at a time."""


_CHESS_TEXTS: Mapping[str, Any] = {
    "last_texts": 1,
    "spelling": plain_fen,
    "own_spelling": plain_san,
    "other": "Position",
}

CHAT_TASKS: Mapping[str, ChatTask] = {
    "maze_fo": ChatTask("an expert maze solver", _MAZE, last_texts=7, example_turns=3, games=25),
    "maze_po": ChatTask("an expert maze solver", _MAZE_PO, last_texts=20, temperature=0.7, games=25),
    "text_nav_fo": ChatTask("an expert player of text adventures", _TEXT_NAV),
    "text_nav_po": ChatTask("an expert player of text adventures", _TEXT_NAV),
    "wordle": ChatTask(
        "an expert wordle player",
        _WORDLE,
        key="guess",
        temperature=0.0,
        games=64,
        header="Wordle:",
        appendix=_vocabulary,
    ),
    "chess": ChatTask("a chess grandmaster", _CHESS, example_turns=3, games=25, **_CHESS_TEXTS),
    "endgames": ChatTask("a chess grandmaster", _ENDGAMES, examples=3, example_turns=1, **_CHESS_TEXTS),
    "twenty_questions": ChatTask(
        "an expert player of Twenty Questions", _TWENTY_QUESTIONS, other="Oracle", header="Questions:"
    ),
    "guess_city": ChatTask("an expert player of guessing games", _GUESS_CITY, other="Resident", header="Questions:"),
    "car_dealer": ChatTask("an experienced car seller", _CAR_DEALER, other="Buyer", header="Start"),
}
"""By name of the task."""
