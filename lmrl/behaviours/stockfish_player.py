"""Stockfish as a player, with the settings of the environment's opponent."""

from collections.abc import Mapping
from random import Random
from typing import Any

import chess

from lmrl.behaviours.chess_players import Mover
from lmrl.envs.chess_stockfish import Stockfish

__all__ = ["stockfish_mover"]

_MORE = 10
_SETTINGS = ("engine_path", "nodes", "depth", "elo", "skill")


def stockfish_mover(env: Mapping[str, Any]) -> Mover:
    """The engine with the settings in an environment's arguments, but looking at ten times as many positions."""
    given = {name: env[name] for name in _SETTINGS if env.get(name) is not None}
    if "depth" not in given:
        given["nodes"] = _MORE * given.get("nodes", 1_000)
    engine = Stockfish(**given)

    def move(board: chess.Board, chance: Random) -> chess.Move:
        return engine.move(board, "")

    return move
