"""How Text-Nav is put to a chat model that plays. The paper has no script for it."""

from lmrl.envs.hooks import ChatPrompt

__all__ = ["CHAT"]

CHAT = ChatPrompt(
    "an expert player of text adventures",
    """\
You play a text adventure in a house. Objective: take the stale food from the table in the living room, put it into the
fridge in the kitchen, and close the fridge, within fifteen commands. Do not eat it.

Your action is one of the admissible commands that the game lists, in the same words. Any other text costs a turn.""",
)
