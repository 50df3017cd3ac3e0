"""Conversations per second of Car Dealer: seller, scripted buyer, environment and the loop that joins them."""

import time
from collections.abc import Iterator

import lmrl
from benchmarks.row import Row
from lmrl.envs.registry import make_policy
from lmrl.rollout import rollout
from lmrl.types import Start


def conversations_per_second(player: str, count: int) -> tuple[float, float]:
    """Conversations and seller's lines per second of processor time."""
    policy = make_policy("car_dealer", player)
    played = rollout(policy, lambda: lmrl.make("car_dealer"), map(Start, range(count)), task="car_dealer")
    began = time.process_time()
    lines = sum(len(episode) for _, episode in played)
    spent = time.process_time() - began
    return count / spent, lines / spent


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    for player in ("behaviour", "optimal"):
        talks, lines = conversations_per_second(player, 2_000)
        yield Row(f"Car Dealer, {player}", talks, "conversations/s", "higher", ">= 300 conversations/s")
        yield Row(f"Car Dealer, {player}, seller's lines", lines, "lines/s", "higher")
