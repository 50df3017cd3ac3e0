"""Drawings of a game on a chess board."""

import re

from rich.text import Text

from lmrl.envs.chess.env import plain_fen
from lmrl.envs.task import Picture
from lmrl.types import Request

__all__ = ["BoardPicture", "draw_board"]

_LIGHT = "#a3b5c3"
_DARK = "#70899b"
_MOVED = "#cbb94f"
_GLYPHS = dict(zip("prnbqk", "♟♜♞♝♛♚", strict=True))


class BoardPicture(Picture):
    """The picture of a game; it shows only what the texts tell."""

    kind = "chess"
    script = "lmrl.envs.chess:picture.js"
    style = "lmrl.envs.chess:picture.css"

    def terminal(self, request: Request) -> Text | None:
        return draw_board(request)


def draw_board(request: Request) -> Text | None:
    """Draw the newest position with the squares of Black's last move marked, or None if the text holds no position."""
    placement = plain_fen(request.observations[-1]).split(" ")[0]
    # A digit of a FEN stands for so many empty squares: ``3R4`` is ``...R....``.
    ranks = re.sub(r"[0-9]", lambda digit: "." * int(digit[0]), placement).split("/")
    if list(map(len, ranks)) != [8] * 8:
        return None
    reply = str(request.info.get("reply", ""))  # in UCI: from square, to square
    marked = {reply[:2], reply[2:4]}
    drawn = Text()
    for row, rank in enumerate(ranks):
        drawn.append(f"{8 - row} ", "dim")
        for col, piece in enumerate(rank):
            square = f"{'abcdefgh'[col]}{8 - row}"
            ground = _DARK if (row + col) % 2 else _LIGHT
            if square in marked:
                ground = _MOVED
            glyph = _GLYPHS.get(piece.lower(), " ")
            drawn.append(f" {glyph} ", f"{'bold #ffffff' if piece.isupper() else '#000000'} on {ground}")
        drawn.append("\n")
    drawn.append("   " + "  ".join("abcdefgh"), "dim")
    return drawn
