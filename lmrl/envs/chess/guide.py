"""The guide for people who play on a chess board: rules, moves of both sides in SAN, positions without the spaces."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import chess

from lmrl.envs.chess.env import legal_move, plain_fen, plain_san
from lmrl.envs.task import Guide
from lmrl.types import Request

__all__ = ["ACTION", "GUIDE", "PAGE", "board_note", "board_spelling"]

_MAX_QUOTED_CHARACTERS = 20  # characters that are quoted of a text that is no move
_MAX_REPETITIONS = 5  # a position that comes up for the fifth time is a draw


def board_spelling(text: str) -> str:
    """Remove the spaces between the characters of a position or a move; leave other texts as they are."""
    line = text.removesuffix("\n")
    # Every second character is a space.
    spaced = len(line) > 1 and not line[1::2].strip(" ")
    return f"{plain_fen(line) if spaced else line}\n"


def board_note(request: Request, env: Mapping[str, Any]) -> str:
    """Describe the newest moves of both sides in SAN, whether the king is in check, and how the game ended."""
    try:
        now = chess.Board(plain_fen(request.observations[-1]))
        if not request.actions:
            return ""
        before = chess.Board(plain_fen(request.observations[-2]))
    except ValueError:
        return ""
    action = plain_san(request.actions[-1])
    move = legal_move(before, action)
    if move is None:
        return f"{action[:_MAX_QUOTED_CHARACTERS] or 'An empty line'} is no legal move here: the board stays as it is."
    notes = [f"You played {before.san(move)}."]
    before.push(move)
    # The texts do not name Black's move: it is the one that leads to the new position.
    for reply in before.legal_moves:
        after = before.copy(stack=False)
        after.push(reply)
        if after.fen() == now.fen():
            notes.append(f"Black played {before.san(reply)}.")
            break
    state = _state(now, request)
    if state:
        notes.append(state)
    return " ".join(notes)


def _state(board: chess.Board, request: Request) -> str:
    if board.is_checkmate():
        return "Checkmate."
    if board.is_stalemate():
        blocked = "White" if board.turn else "Black"
        return f"Draw: {blocked} is not in check and has no legal move (stalemate)."
    if board.is_insufficient_material():
        return "Draw: neither side has the pieces to mate."
    if board.is_seventyfive_moves():
        return "Draw: 75 moves of both sides without a capture or a move of a pawn."
    if _comes_up(board, request) >= _MAX_REPETITIONS:
        return "Draw: the position came up five times."
    return "Check." if board.is_check() else ""


def _comes_up(now: chess.Board, request: Request) -> int:
    """Return how often the newest position has come up in the game."""
    fens = list(map(plain_fen, request.observations))
    # The texts show positions with White to move. If White's move ended the game, the last one has Black to move; then
    # the positions after White's moves count, which have to be computed.
    positions = [fens[0]] if now.turn == chess.WHITE else []
    for turn, (before, after) in enumerate(pairwise(fens)):
        # An illegal text leaves the position and its clocks as they were: the position did not come up again.
        if before == after:
            continue
        if now.turn == chess.WHITE:
            positions.append(after)
        else:
            board = chess.Board(before)
            board.push_san(plain_san(request.actions[turn]))
            positions.append(board.fen())
    return list(map(_without_clocks, positions)).count(_without_clocks(fens[-1]))


def _without_clocks(fen: str) -> str:
    """Return what makes positions equal: pieces, side to move, castling and en passant."""
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
