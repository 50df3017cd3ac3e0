"""Exact play in the endings: the distance to mate of a position, and the best move of either side."""

from collections.abc import Iterator
from operator import itemgetter
from typing import TypeAlias

import chess

from lmrl.envs.endgame_cache import load_table
from lmrl.envs.endgame_retrograde import NO_WIN
from lmrl.envs.endgame_squares import HOME, SYMMETRIES
from lmrl.errors import UserError

__all__ = ["best_move", "mate_plies"]

_KINDS = {chess.QUEEN: "Q", chess.ROOK: "R"}
_MEN = ("", "Q", "R", "QR", "RR")
_IMAGES = SYMMETRIES.tolist()

_Place: TypeAlias = tuple[str, list[int]]  # White's men beside the king; squares of k, K and of these men


def mate_plies(board: chess.Board) -> int | None:
    """Plies until White mates if both play their best; None where White cannot force mate.

    An even number has Black to move; 0 is mate. A win in n moves is 2 n - 1 plies with White to move. The rules that
    end games as drawn by repetition or by 75 moves are not looked at.

    Raises:
        UserError: unless there is a lone black king against a king and, at most, a queen or a rook and one more rook.
    """
    plies = _plies(_place(board), board.turn)
    return None if plies == NO_WIN else plies


def best_move(board: chess.Board) -> chess.Move:
    """The move that mates soonest, or is mated latest; of equal ones, the first in the order of UCI.

    The position is legal and the game not over.

    Raises:
        UserError: see `mate_plies`.
    """
    sign = 1 if board.turn == chess.WHITE else -1
    choices = ((sign * _plies(place, not board.turn), move.uci(), move) for move, place in _following(board))
    return min(choices, key=itemgetter(0, 1))[2]


def _place(board: chess.Board) -> _Place:
    kings = [board.king(chess.BLACK), board.king(chess.WHITE)]
    men = [(kind, square) for piece, kind in _KINDS.items() for square in board.pieces(piece, chess.WHITE)]
    men.sort()
    kinds = "".join(kind for kind, _ in men)
    squares = [square for square in (*kings, *(square for _, square in men)) if square is not None]
    if kinds not in _MEN or len(squares) != 2 + len(kinds) or board.occupied.bit_count() != len(squares):
        raise UserError(
            "the distance to mate is known for a lone black king against a king with Q, R, QR or RR, "
            f"got {board.board_fen()}"
        )
    return kinds, squares


def _following(board: chess.Board) -> Iterator[tuple[chess.Move, _Place]]:
    """The legal moves and where they lead."""
    kinds, squares = _place(board)
    for move in board.legal_moves:
        after = [move.to_square if square == move.from_square else square for square in squares]
        if board.turn == chess.BLACK and move.to_square in squares:
            taken = squares.index(move.to_square)
            yield move, (kinds[: taken - 2] + kinds[taken - 1 :], after[:taken] + after[taken + 1 :])
        else:
            yield move, (kinds, after)


def _plies(place: _Place, turn: chess.Color) -> int:
    kinds, (black, *white) = place
    if not kinds:
        return NO_WIN
    symmetry, corner = HOME[black]
    image = _IMAGES[symmetry]
    index = (corner, *(image[square] for square in white))
    return int(load_table(kinds)[0 if turn == chess.WHITE else 1][index])
