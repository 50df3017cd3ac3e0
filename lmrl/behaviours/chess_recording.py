"""The recipe of the chess dataset: agents of differing strength against one opponent.

The paper (appendix C.4) draws the strength of the agent, by Elo, from a range that reaches from weaker to stronger than
the opponent. An engine's Elo setting chooses by a generator that cannot be seeded, so strength is set here by the share
of random moves, drawn for each game: the same seed gives the same games. The first two moves are random in all games,
which makes them differ.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from lmrl.behaviours.chess_players import ChessPlayer, Mover, any_move, searched
from lmrl.behaviours.recording import Recording, episode_seed
from lmrl.behaviours.stockfish_player import stockfish_mover
from lmrl.protocols import Policy
from lmrl.rollout import Start

__all__ = ["PLAYERS", "recording"]


_CARELESS = {"stockfish": 0.14, "alphabeta": 0.5, "random": 1.0}
"""By opponent the largest share of random moves: the better the opponent, the less the agent can afford."""

_OPENING = 2
"""So many of the first moves are random."""


def _mover(env: Mapping[str, Any]) -> Mover:
    """Looks farther than the opponent: Stockfish against Stockfish, the built-in player against the others."""
    return stockfish_mover(env) if env.get("opponent") == "stockfish" else searched(1 + int(env.get("depth") or 1))


def _epsilon(env: Mapping[str, Any]) -> Callable[[Random], float]:
    most = _CARELESS[env.get("opponent", "alphabeta")]
    return lambda chance: most * chance.random()


PLAYERS: dict[str, Callable[[Mapping[str, Any]], Policy]] = {
    "random": lambda env: ChessPlayer(any_move),
    "behaviour": lambda env: ChessPlayer(_mover(env), _epsilon(env), _OPENING),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """The recipe against any opponent."""
    return Recording(PLAYERS["behaviour"](env), lambda seed, index: Start(episode_seed(seed, index)))
