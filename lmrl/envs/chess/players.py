"""Scripted players of chess and its endgames, which look at ``info["fen"]``, and the recipe of the chess dataset.

The paper (appendix C.4) draws the strength of the agent, by Elo, from a range that reaches from weaker to stronger than
the opponent. An engine's Elo setting chooses by a generator that cannot be seeded, so strength is set here by the share
of random moves, drawn for each game: the same seed gives the same games. The first two moves are random in all games,
which makes them differ.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import chess

from lmrl.envs.chess.env import spaced_san
from lmrl.envs.chess.opponents import Stockfish, best_move
from lmrl.envs.task import Recording, recording_seed, turn_chance
from lmrl.types import Policy, Reply, Request, Start

__all__ = ["PLAYERS", "ChessPlayer", "Mover", "any_move", "recording", "searched", "stockfish_mover"]

Mover = Callable[[chess.Board, Random], chess.Move]
"""A function from a position and a generator to a legal move."""


class ChessPlayer:
    """A player of random moves with some probability, and otherwise those of a `Mover`.

    Args:
        mover: finds the other moves.
        epsilon: draws the probability of a random move in an episode, from a generator that follows from its seed.
        opening: number of random first moves, so that two deterministic players do not repeat the same game.
    """

    def __init__(self, mover: Mover, epsilon: Callable[[Random], float] = lambda _: 0.0, opening: int = 0) -> None:
        self._mover = mover
        self._epsilon = epsilon
        self._opening = opening

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """Return a move for each request."""
        return [Reply(self._move(request)) for request in requests]

    def _move(self, request: Request) -> str:
        board = chess.Board(request.info["fen"])
        chance = turn_chance(request)
        careless = request.turn < self._opening or chance.random() < self._epsilon(Random(f"epsilon {request.seed}"))
        return spaced_san(board.san(any_move(board, chance) if careless else self._mover(board, chance)))


def any_move(board: chess.Board, chance: Random) -> chess.Move:
    """Draw a uniformly random legal move."""
    return chance.choice(list(board.legal_moves))


def searched(depth: int) -> Mover:
    """Return the built-in player, which looks ahead by a number of plies."""
    return lambda board, chance: best_move(board, depth, chance)


_MORE = 10  # the player looks at so many times the positions of its opponent


def stockfish_mover(env: Mapping[str, Any]) -> Mover:
    """Return the engine with the settings of an environment, but ten times as many positions per move."""
    settings: dict[str, Any] = {}
    for name in ("engine_path", "nodes", "depth", "elo", "skill"):
        if env.get(name) is not None:
            settings[name] = env[name]
    # A given depth is the limit by itself.
    if "depth" not in settings:
        settings["nodes"] = _MORE * settings.get("nodes", 1_000)
    engine = Stockfish(**settings)
    return lambda board, chance: engine.move(board, "")


_CARELESS = {"stockfish": 0.14, "alphabeta": 0.5, "random": 1.0}
"""The largest share of random moves by opponent: the better the opponent, the fewer mistakes the player may make."""

_OPENING = 2  # number of random first moves


def _mover(env: Mapping[str, Any]) -> Mover:
    # The player has to look farther than its opponent to win.
    return stockfish_mover(env) if env.get("opponent") == "stockfish" else searched(1 + int(env.get("depth") or 1))


def _epsilon(env: Mapping[str, Any]) -> Callable[[Random], float]:
    most = _CARELESS[env.get("opponent", "alphabeta")]
    return lambda chance: most * chance.random()


PLAYERS: dict[str, Callable[[Mapping[str, Any]], Policy]] = {
    "random": lambda env: ChessPlayer(any_move),
    "behaviour": lambda env: ChessPlayer(_mover(env), _epsilon(env), _OPENING),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """Return the recipe of the dataset, against any opponent."""
    return Recording(PLAYERS["behaviour"](env), lambda seed, index: Start(recording_seed(seed, index)))
