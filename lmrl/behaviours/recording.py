"""How a task's dataset is recorded: who plays, where episodes start, and what else ends them."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lmrl.protocols import Policy, Request
from lmrl.rollout import Start

__all__ = ["Recording", "episode_seed"]


@dataclass(frozen=True)
class Recording:
    """The recipe of a dataset."""

    policy: Policy
    start: Callable[[int, int], Start]
    """From the seed of the dataset and the index of the episode to how that episode begins."""
    stop: Callable[[Request], bool] | None = None
    """After each turn: whether the recorder cuts the episode here (it is then truncated)."""


def episode_seed(seed: int, index: int) -> int:
    """The seed of an episode of a dataset; far from the small numbers that evaluations use."""
    return Random(f"episode {seed} {index}").getrandbits(53)
