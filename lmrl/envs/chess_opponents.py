"""Who plays Black: by name and settings, one description of each for the records."""

from random import Random
from typing import Any, Protocol

import chess

from lmrl.envs.chess_search import best_move
from lmrl.envs.chess_stockfish import Stockfish
from lmrl.errors import UserError, unknown

__all__ = ["OPPONENTS", "ChessOpponent", "make_opponent"]

OPPONENTS = ("alphabeta", "random", "stockfish")
_SETTINGS = {"alphabeta": ("depth",), "random": (), "stockfish": ("elo", "skill", "nodes", "depth", "engine_path")}


class ChessOpponent(Protocol):
    """Answers positions. A move follows from the position and the seed alone, as far as the player allows."""

    def move(self, board: chess.Board, seed: str) -> chess.Move: ...

    def describe(self) -> dict[str, Any]:
        """Name, version and settings, JSON-like: part of every episode and score."""
        ...


class RandomOpponent:
    """Uniformly random legal moves."""

    def move(self, board: chess.Board, seed: str) -> chess.Move:
        """Any legal move."""
        return Random(seed).choice(list(board.legal_moves))

    def describe(self) -> dict[str, Any]:
        """See `ChessOpponent`."""
        return {"name": "random"}


class AlphaBetaOpponent:
    """The built-in player, for machines without an engine."""

    version = 1

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def move(self, board: chess.Board, seed: str) -> chess.Move:
        """The best move that a search of this depth finds; the seed chooses among equals."""
        return best_move(board, self.depth, Random(seed))

    def describe(self) -> dict[str, Any]:
        """See `ChessOpponent`."""
        return {"name": "alphabeta", "version": self.version, "depth": self.depth}


def make_opponent(name: str, **settings: Any) -> ChessOpponent:
    """The opponent of that name.

    Args:
        name: one of `OPPONENTS`.
        settings: ``depth`` (plies; alphabeta: 1 if None), and for stockfish those of `Stockfish`; None: not set.

    Raises:
        UserError: for an unknown name, a setting that this opponent does not have, or a number out of range.
    """
    if name not in OPPONENTS:
        raise unknown("chess opponent", name, OPPONENTS)
    given = {key: value for key, value in settings.items() if value is not None}
    for key, value in given.items():
        if key not in _SETTINGS[name]:
            known = ", ".join(_SETTINGS[name]) or "none"
            raise UserError(f"opponent {name!r} has no setting {key!r}; its settings: {known}")
        if key != "engine_path" and (not isinstance(value, int) or value < (key != "skill")):
            raise UserError(f"{key} of the opponent must be a whole number from {int(key != 'skill')}, got {value!r}")
    if name == "random":
        return RandomOpponent()
    return AlphaBetaOpponent(given.get("depth", 1)) if name == "alphabeta" else Stockfish(**given)
