"""How the endgames are put to a chat model that plays."""

from lmrl.envs.chess.env import plain_fen, plain_san
from lmrl.envs.hooks import ChatPrompt

__all__ = ["CHAT"]

CHAT = ChatPrompt(
    "a chess grandmaster",
    """\
You play White in a chess endgame against a lone king. Each position is given in FEN. Your action is a legal move in
SAN, such as "Kd5", "Rh7+" or "Qb7#". Giving mate earns 1, a draw nothing, and any text that is no legal move costs 1
and leaves the board as it is. Mate in as few moves as you can; beware of stalemate.""",
    other="Position",
    last_texts=1,
    examples=3,
    example_turns=1,
    spelling=plain_fen,
    own_spelling=plain_san,
)
