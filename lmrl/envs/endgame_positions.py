"""Positions of the endings, drawn by chance."""

import chess
import numpy as np

from lmrl.errors import UserError, unknown

__all__ = ["PIECE_SETS", "draw_position", "parse_piece_sets"]

PIECE_SETS = ("kQK", "kRK", "kQRK", "kRRK")
"""Black's king and White's men."""


def parse_piece_sets(names: str) -> tuple[str, ...]:
    """The sets in a text such as ``"kQK kRK"``.

    Raises:
        UserError: for an unknown name, or none.
    """
    sets = tuple(names.split())
    if not sets:
        raise UserError(f"piece_sets must name at least one of {' '.join(PIECE_SETS)}, got {names!r}")
    for name in sets:
        if name not in PIECE_SETS:
            raise unknown("piece set", name, PIECE_SETS)
    return sets


def draw_position(chance: np.random.Generator, pieces: str) -> chess.Board:
    """A uniformly random legal position of these pieces with White to move, by trying; White always has a move."""
    men = [chess.Piece.from_symbol(symbol) for symbol in pieces]
    while True:
        squares = chance.choice(64, len(men), replace=False)
        board = chess.Board(None)
        board.set_piece_map(dict(zip(map(int, squares), men, strict=True)))
        if board.is_valid():
            return board
