"""The recipe of the Text-Nav datasets: two players, each of whom knows half of the house.

The paper (appendix C.2) says: two behaviour policies, each going for the goal in one half of the rooms and acting at
random in the other. The halves and how often each policy plays are those of the reference's script: three quarters of
the episodes know the far rooms and hardly ever win; one quarter knows the way from the bedroom to the kitchen and wins
if chance brings it there. So the way from the far rooms has to be stitched together. Length, success and return
come near the published 12.2, .26 and .258.
"""

from collections.abc import Callable, Mapping
from typing import Any

from lmrl.behaviours.recording import Recording, episode_seed
from lmrl.behaviours.text_nav import TextNavPlayer
from lmrl.protocols import Policy
from lmrl.rollout import Start

__all__ = ["PARTS", "PLAYERS", "recording"]

PARTS = (
    (("office", "bathroom", "garden", "backyard"), 0.75),
    (("kitchen", "dining room", "living room", "bedroom"), 0.25),
)
"""What a player may know, and the share of the episodes in which it does."""
PLAYERS: dict[str, Callable[[Mapping[str, Any]], Policy]] = {
    "random": lambda env: TextNavPlayer(0.0),
    "behaviour": lambda env: TextNavPlayer(1.0, PARTS),
    "optimal": lambda env: TextNavPlayer(1.0),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """The recipe for both observations; episodes begin anywhere."""
    return Recording(policy=PLAYERS["behaviour"](env), start=lambda seed, index: Start(episode_seed(seed, index)))
