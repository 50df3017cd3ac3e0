"""Seconds to work the endgame tables out, best moves per second, and steps of the game per second, resets included.

Steps are uniformly random legal moves against the random opponent; listing the legal moves is not counted.
"""

import random
import time
from collections.abc import Iterator

import numpy as np

import lmrl
from benchmarks.row import Row
from lmrl.envs.endgames.env import PIECE_SETS, draw_position
from lmrl.envs.endgames.table import best_move, load_table, lone_kings, solve

MOVES = 2_000
STEPS = 3_000
ASKED_SECONDS = 10
ASKED_STEPS = 1_500


def build() -> tuple[float, float]:
    """Processor seconds for the sets of three pieces and for those of four, without the cache."""
    began = time.process_time()
    kings = {"": lone_kings()}
    smaller = {men: solve(men, kings)[0] for men in ("Q", "R")}
    three = time.process_time()
    for men in ("QR", "RR"):
        solve(men, smaller)
    return three - began, time.process_time() - three


def best_moves() -> float:
    """Best moves per second, over all sets; the tables are in memory."""
    chance = np.random.default_rng(0)
    boards = [draw_position(chance, PIECE_SETS[index % len(PIECE_SETS)]) for index in range(MOVES)]
    for men in ("Q", "R", "QR", "RR"):
        load_table(men)
    began = time.process_time()
    for board in boards:
        best_move(board)
    return MOVES / (time.process_time() - began)


def steps() -> float:
    """Steps per second of `lmrl.make("endgames", opponent="random")`."""
    env, rng, spent = lmrl.make("endgames", opponent="random"), random.Random(0), 0.0
    env.reset(seed=0)
    for _ in range(STEPS):
        action = rng.choice(env.legal_actions())
        began = time.process_time()
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
        spent += time.process_time() - began
    return STEPS / spent


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    three, four = build()
    yield Row("endgames, tables of kQK and kRK", three, "s", "lower", f"<= {ASKED_SECONDS} s", 2)
    yield Row("endgames, tables of kQRK and kRRK", four, "s", "lower", f"<= {6 * ASKED_SECONDS} s", 2)
    yield Row("endgames, best moves by the tables", best_moves(), "moves/s", "higher")
    yield Row("endgames, random moves against random", steps(), "steps/s", "higher", f">= {ASKED_STEPS:,} steps/s")
