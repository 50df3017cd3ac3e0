"""Scripted players of chess and its endgames. They look at ``info["fen"]``."""

from collections.abc import Callable, Sequence
from random import Random

import chess

from lmrl.behaviours.chance import turn_chance
from lmrl.envs.chess_search import best_move
from lmrl.envs.chess_text import spaced_san
from lmrl.protocols import Reply, Request

__all__ = ["ChessPlayer", "Mover", "any_move", "searched"]

Mover = Callable[[chess.Board, Random], chess.Move]
"""From a position and a generator to a legal move."""


class ChessPlayer:
    """Plays random moves with some probability, and otherwise those of a `Mover`.

    Args:
        mover: who finds the other moves.
        epsilon: from an episode's seed, as a generator, to the probability of a random move in that episode.
        opening: so many of the first moves are random, so that two players who always find the same moves play
            different games.
    """

    def __init__(self, mover: Mover, epsilon: Callable[[Random], float] = lambda _: 0.0, opening: int = 0) -> None:
        self._mover, self._epsilon, self._opening = mover, epsilon, opening

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """A move for each request."""
        return [Reply(self._move(request)) for request in requests]

    def _move(self, request: Request) -> str:
        board, chance = chess.Board(request.info["fen"]), turn_chance(request)
        careless = request.turn < self._opening or chance.random() < self._epsilon(Random(f"epsilon {request.seed}"))
        return spaced_san(board.san(any_move(board, chance) if careless else self._mover(board, chance)))


def any_move(board: chess.Board, chance: Random) -> chess.Move:
    """A uniformly random legal move."""
    return chance.choice(list(board.legal_moves))


def searched(depth: int) -> Mover:
    """The built-in player, looking so many plies ahead."""
    return lambda board, chance: best_move(board, depth, chance)
