"""How a game on a chess board is drawn."""

from collections.abc import Mapping

from rich.text import Text

from lmrl.envs.chess.env import plain_fen
from lmrl.envs.task import Picture
from lmrl.types import Request

__all__ = ["BoardPicture", "draw_board"]

_LIGHT = "#a3b5c3"
_DARK = "#70899b"
_MOVED = "#cbb94f"
_PIECES = "♟♜♞♝♛♚"


class BoardPicture(Picture):
    """All that it shows is in the texts."""

    kind = "chess"
    script = "lmrl.envs.chess:picture.js"
    style = "lmrl.envs.chess:picture.css"

    def terminal(self, request: Request) -> Text | None:
        return draw_board(request)


def draw_board(request: Request) -> Text | None:
    """The newest position with the squares of Black's last move marked; None if the text holds no position."""
    ranks = [_spread(rank) for rank in plain_fen(request.observations[-1]).split(" ")[0].split("/")]
    if [len(rank) for rank in ranks] != [8] * 8:
        return None
    reply = str(request.info.get("reply", ""))
    marked = {reply[:2], reply[2:4]}
    drawn = Text()
    for row, rank in enumerate(ranks):
        drawn.append(f"{8 - row} ", "dim")
        for col, piece in enumerate(rank):
            square = f"{'abcdefgh'[col]}{8 - row}"
            ground = _MOVED if square in marked else _DARK if (row + col) % 2 else _LIGHT
            drawn.append(f" {_glyph(piece)} ", f"{'bold #ffffff' if piece.isupper() else '#000000'} on {ground}")
        drawn.append("\n")
    drawn.append("   " + "  ".join("abcdefgh"), "dim")
    return drawn


def _spread(rank: str) -> str:
    """``3R4`` as eight signs."""
    return "".join("." * int(sign) if sign.isdigit() else sign for sign in rank)


def _glyph(piece: str) -> str:
    kinds: Mapping[str, str] = dict(zip("prnbqk", _PIECES, strict=True))
    return kinds.get(piece.lower(), " ")
