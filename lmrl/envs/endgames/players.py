"""The recipe of the endgame dataset: random moves among the best ones, at a rate that differs from game to game.

The paper (appendix C.5) says: a random legal position and a random epsilon; each move is random with probability
epsilon, otherwise the engine's. It does not give the distribution of epsilon. Here it is a uniform number to the power
1.2, so that success and return come near the published .59 and .586 when Stockfish is Black. The engine is the exact
table: its moves are optimal and the same on every machine. So games are shorter than the published 11.9 moves.

The reference cuts games after 200 moves. None gets there: 75 moves without a capture end a game, and Black can capture
at most once without a draw.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import chess

from lmrl.envs.chess.players import ChessPlayer, any_move
from lmrl.envs.endgames.table import best_move
from lmrl.envs.task import Recording, recording_seed
from lmrl.types import Policy, Start

__all__ = ["PLAYERS", "recording"]

_POWER = 1.2


def _best(board: chess.Board, chance: Random) -> chess.Move:
    return best_move(board)


def _epsilon(chance: Random) -> float:
    return float(chance.random() ** _POWER)


PLAYERS: dict[str, Callable[[Mapping[str, Any]], Policy]] = {
    "random": lambda env: ChessPlayer(any_move),
    "behaviour": lambda env: ChessPlayer(_best, _epsilon),
    "optimal": lambda env: ChessPlayer(_best),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """Return the recipe of the dataset, against any opponent."""
    return Recording(PLAYERS["behaviour"](env), lambda seed, index: Start(recording_seed(seed, index)))
