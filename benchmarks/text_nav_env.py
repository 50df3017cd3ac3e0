"""Steps per second of Text-Nav in one process, resets included: uniformly random admissible commands."""

import random
import time
from collections.abc import Iterator

import lmrl
from benchmarks.row import Row

STEPS = 100_000
ASKED = 30_000


def play(steps: int, seed: int) -> None:
    """Play so many commands, beginning anew where an episode ends."""
    env, chance = lmrl.make("text_nav_fo"), random.Random(seed)
    _, info = env.reset(seed=seed)
    over = False
    for step in range(steps):
        if over:
            env.reset(seed=seed + step)
        _, _, terminated, truncated, info = env.step(chance.choice(env.legal_actions()))
        over = terminated or truncated
    assert "world" in info


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`: processor time, from empty tables."""
    began = time.process_time()
    play(STEPS, 0)
    rate = STEPS / (time.process_time() - began)
    yield Row("Text-Nav, resets included", rate, "steps/s", "higher", f">= {ASKED:,} steps/s")
