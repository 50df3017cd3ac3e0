"""How chess is put to a chat model that plays.

Of the paper's erratum: its examples were spelt otherwise than the positions.
"""

from lmrl.envs.chess.env import plain_fen, plain_san
from lmrl.envs.hooks import ChatPrompt

__all__ = ["CHAT"]

CHAT = ChatPrompt(
    "a chess grandmaster",
    """\
You play White in a game of chess against an engine. Each position is given in FEN. Your action is a legal move in SAN,
such as "Nf3", "exd5", "O-O" or "Qxf7#". Giving mate earns 1, being mated costs 1, and any text that is no legal move
costs 1 and leaves the board as it is.""",
    other="Position",
    last_texts=1,
    example_turns=3,
    games=25,
    spelling=plain_fen,
    own_spelling=plain_san,
)
