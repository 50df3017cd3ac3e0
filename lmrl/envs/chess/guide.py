"""The guide for people who play on a chess board: rules, moves of both sides in SAN, positions without the spaces."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import chess

from lmrl.envs.chess.env import plain_fen, plain_san
from lmrl.envs.task import Guide
from lmrl.types import Request

__all__ = ["ACTION", "GUIDE", "PAGE", "board_note", "board_spelling"]

_LONGEST = 20
"""Characters of a text that is no move."""
_MOST = 5
"""A position that has come up so often is a draw."""


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
    return " ".join([*lines, *_state(now, request)])


def _after(board: chess.Board, move: chess.Move) -> str:
    board.push(move)
    fen = board.fen()
    board.pop()
    return fen


def _state(board: chess.Board, request: Request) -> list[str]:
    if board.is_checkmate():
        return ["Checkmate."]
    blocked = "White" if board.turn else "Black"
    draws = (
        (board.is_stalemate(), f"{blocked} is not in check and has no legal move (stalemate)"),
        (board.is_insufficient_material(), "neither side has the men to mate"),
        (board.is_seventyfive_moves(), "75 moves of both sides without a capture or a move of a pawn"),
        (_comes_up(board, request) >= _MOST, "the position came up five times"),
    )
    why = next((words for holds, words in draws if holds), None)
    if why is not None:
        return [f"Draw: {why}."]
    return ["Check."] if board.is_check() else []


def _comes_up(now: chess.Board, request: Request) -> int:
    """How often the newest position has come up in the game.

    Texts show the positions before White's moves; those after them are worked out where one of them ended the game.
    """
    fens = [plain_fen(text) for text in request.observations]
    # A text that was no legal move leaves the position and its clocks as they were: it did not come up again.
    turns = [turn for turn, (before, after) in enumerate(pairwise(fens)) if before != after]
    if now.turn == chess.WHITE:
        return sum(_alike(fen) == _alike(fens[-1]) for fen in (fens[0], *(fens[turn + 1] for turn in turns)))
    boards = [chess.Board(fens[turn]) for turn in turns]
    for board, turn in zip(boards, turns, strict=True):
        board.push_san(plain_san(request.actions[turn]))
    return sum(_alike(board.fen()) == _alike(fens[-1]) for board in boards)


def _alike(fen: str) -> str:
    """Return the key of equal positions: pieces, side to move, castling and en passant, without the clocks."""
    return fen.rpartition(" ")[0].rpartition(" ")[0]


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
