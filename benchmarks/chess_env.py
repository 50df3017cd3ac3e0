"""Moves per second of chess, resets included: White's moves, each with Black's answer.

They are uniformly random legal ones; choosing them is not counted.
"""

import random
import time
from collections.abc import Iterator

import chess

import lmrl
from benchmarks.row import Row
from lmrl.envs.chess.env import spaced_san
from lmrl.errors import UserError


def moves_per_second(moves: int, **env_arguments: object) -> float:
    """White's moves per second of wall time (an engine is another process) spent in ``reset`` and ``step``."""
    env, chance = lmrl.make("chess", **env_arguments), random.Random(0)
    spent, over, info = 0.0, True, {}
    for move in range(moves):
        if over:
            began = time.perf_counter()
            _, info = env.reset(seed=move)
            spent += time.perf_counter() - began
        board = chess.Board(info["fen"])
        action = spaced_san(board.san(chance.choice(list(board.legal_moves))))
        began = time.perf_counter()
        _, _, terminated, truncated, info = env.step(action)
        spent += time.perf_counter() - began
        over = terminated or truncated
    return moves / spent


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    rate, shown = moves_per_second(5_000, opponent="random"), ""
    yield Row("chess against random", rate, "moves/s", "higher", ">= 1,500 moves/s")
    yield Row("chess against alphabeta", moves_per_second(1_000), "moves/s", "higher")
    try:
        rate = moves_per_second(600, opponent="stockfish", nodes=1_000)
    except UserError as error:
        rate, shown = None, f"not measured: {error}"
    yield Row("chess against Stockfish, 1,000 nodes", rate, "moves/s", "higher", ">= 300 moves/s", shown=shown)
