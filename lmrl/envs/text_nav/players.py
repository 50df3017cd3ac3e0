"""Scripted players of Text-Nav, and the recipe of its datasets.

The paper (appendix C.2) says: two behaviour policies, each going for the goal in one half of the rooms and acting at
random in the other. The halves and the shares of the policies are those of the reference's script. In three quarters
of the episodes the player knows the far rooms and hardly ever wins. In one quarter it knows the way from the bedroom
to the kitchen and wins if chance brings it there. So the way from the far rooms has to be stitched together. Length,
success and return come near the published 12.2, .26 and .258.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from lmrl.envs.task import Recording, recording_seed, turn_chance
from lmrl.envs.text_nav.house import GOAL, ROOMS, State, commands, obey
from lmrl.errors import UserError
from lmrl.types import Policy, Reply, Request, Start

__all__ = ["PARTS", "PLAYERS", "TextNavPlayer", "best_command", "recording"]


class TextNavPlayer:
    """A player of the best command in the rooms that it knows, with some probability, otherwise of any admissible one.

    Args:
        skill: probability of the best command, from 0 to 1.
        parts: sets of rooms with their probabilities; an episode's seed decides which set its player knows.

    Raises:
        UserError: for a skill that is no probability.
    """

    def __init__(self, skill: float, parts: Sequence[tuple[Collection[str], float]] = ((ROOMS, 1.0),)) -> None:
        if not 0 <= skill <= 1:
            raise UserError(f"skill must be from 0 to 1, got {skill}")
        self._skill = skill
        self._rooms, self._shares = zip(*parts, strict=True)

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """Return a command for each request."""
        return [Reply(f"{self._command(request)}\n") for request in requests]

    def _command(self, request: Request) -> str:
        state: State = request.info["world"]
        # A generator of the episode: the player knows the same rooms in all of its turns.
        known = Random(f"part {request.seed}").choices(self._rooms, self._shares)[0]
        chance = turn_chance(request)
        if self._skill and state.room in known and chance.random() < self._skill:
            best = best_command(state)
            if best is not None:
                return best
        return chance.choice(commands(state))


def best_command(state: State) -> str | None:
    """Return the first command of a shortest way to win, or None if the game is lost."""
    # Other things do not matter for winning: without them there are few states, and the cache holds all of them.
    return _best(state._replace(things=tuple(item for item in state.things if item[0] == GOAL)))


@lru_cache(maxsize=1 << 12)
def _best(start: State) -> str | None:
    # Breadth-first search; for each state the first command of a shortest way to it.
    first: dict[State, str] = {start: ""}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        for command in commands(state):
            change = obey(state, command)
            if change is None or change.state in first or change.state.lost():
                continue
            first[change.state] = first[state] or command
            if change.state.won():
                return first[change.state]
            waiting.append(change.state)
    return None


PARTS = (
    (("office", "bathroom", "garden", "backyard"), 0.75),
    (("kitchen", "dining room", "living room", "bedroom"), 0.25),
)
"""The rooms that a player knows, and the share of the episodes in which it does."""
PLAYERS: dict[str, Callable[[Mapping[str, Any]], Policy]] = {
    "random": lambda env: TextNavPlayer(0.0),
    "behaviour": lambda env: TextNavPlayer(1.0, PARTS),
    "optimal": lambda env: TextNavPlayer(1.0),
}


def recording(task_name: str, env: Mapping[str, Any]) -> Recording:
    """Return the recipe of the dataset, the same for both observations; episodes begin anywhere."""
    return Recording(policy=PLAYERS["behaviour"](env), start=lambda seed, index: Start(recording_seed(seed, index)))
