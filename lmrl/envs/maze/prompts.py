"""How the mazes are put to a chat model that plays.

Of the paper's erratum: among the actions "move down" was missing and "move up" came twice.
"""

from lmrl.envs.hooks import ChatPrompt

__all__ = ["CHAT_FO", "CHAT_PO"]

CHAT_FO = ChatPrompt(
    "an expert maze solver",
    """\
Objective: reach the goal of a maze in as few steps as possible.

Positions are given as (row, column), each number with a space between its digits: row 1 0 is row ten. Moving up takes
1 from the row, moving down adds 1; moving left takes 1 from the column, moving right adds 1. A wall leaves you where
you are. Every step costs 1, the one that reaches the goal nothing, and any text that is no action costs 4.

The actions: "move left", "move right", "move up", "move down".""",
    last_texts=7,
    example_turns=3,
    games=25,
)

CHAT_PO = ChatPrompt(
    "an expert maze solver",
    """\
Objective: reach the goal of a maze in as few steps as possible. You are told the walls around you, but neither where
you are nor where the goal is: remember the way that you have gone.

A wall leaves you where you are. Every step costs 1, the one that reaches the goal nothing, and any text that is no
action costs 4.

The actions: "move left", "move right", "move up", "move down".""",
    last_texts=20,
    temperature=0.7,
    games=25,
)
