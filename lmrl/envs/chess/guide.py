"""What a person is told who plays on a chess board: rules, both sides' moves in SAN, positions without the spaces."""

from collections.abc import Mapping
from typing import Any

import chess

from lmrl.envs.chess.env import plain_fen, plain_san
from lmrl.envs.task import Guide
from lmrl.types import Request

__all__ = ["ACTION", "GUIDE", "PAGE", "board_note", "board_spelling"]

_LONGEST = 20
"""Characters of a text that is no move."""


def board_spelling(text: str) -> str:
    """A position in FEN, or a move in SAN, without the spaces between all characters; other texts as they are."""
    line = text.removesuffix("\n")
    spaced = len(line) > 1 and not line[1::2].strip(" ")
    return f"{plain_fen(line) if spaced else line}\n"


def board_note(request: Request, env: Mapping[str, Any]) -> str:
    """The newest moves of both in SAN, whether the king is in check, and how the game ended."""
    try:
        now = chess.Board(plain_fen(request.observations[-1]))
        if not request.actions:
            return ""
        before = chess.Board(plain_fen(request.observations[-2]))
    except ValueError:
        return ""
    said = plain_san(request.actions[-1])
    try:
        move = before.parse_san(said[:_LONGEST])
    except ValueError:
        return f"{said[:_LONGEST] or 'An empty line'} is no legal move here: the board stays as it is."
    lines = [f"You played {before.san(move)}."]
    before.push(move)
    reply = next((answer for answer in before.legal_moves if _after(before, answer) == now.fen()), None)
    if reply is not None:
        lines.append(f"Black played {before.san(reply)}.")
    return " ".join([*lines, *_state(now)])


def _after(board: chess.Board, move: chess.Move) -> str:
    board.push(move)
    fen = board.fen()
    board.pop()
    return fen


def _state(board: chess.Board) -> list[str]:
    if board.is_checkmate():
        return ["Checkmate."]
    if board.is_stalemate():
        return ["Stalemate."]
    return ["Check."] if board.is_check() else []


ACTION = "A legal move in SAN, with or without spaces: Nf3, exd5, O-O, e8=Q."
PAGE = "Two clicks on the board do it, too."
GUIDE = Guide(
    "You play White against a program. Mate earns 1, being mated costs 1, a draw nothing. What is no legal move "
    "costs 1 and leaves the board as it is.",
    ACTION,
    ("e4", "r1bqkbnr/pppppppp/2n5/8/4P3/8/PPPP1PPP/RNBQKBNR w KQkq - 1 2"),
    spelling=board_spelling,
    note=board_note,
    page=PAGE,
)
