"""The share of turns that GiGPO can compare, since their state comes again in another episode of the group.

The episodes of a group begin alike. The policy that recorded the data of the task plays them, or a trained policy.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

import lmrl
from benchmarks.row import Row
from lmrl.envs import registry
from lmrl.rollout import episode_seed, in_order, rollout
from lmrl.types import Episode, LoadedPolicy, Start

GROUPS = 16
SIZE = 8


def group_starts(task: str, groups: int = GROUPS, size: int = SIZE) -> list[Start]:
    """Return the starts group by group: those of a group are alike, and each has its own seed for what follows."""
    with closing(lmrl.make(task)) as env:
        begun = [env.reset(seed=episode_seed(0, index))[1]["start"] for index in range(groups)]
    return [
        Start(episode_seed(0, index, 1 + member), options)
        for index, options in enumerate(begun)
        for member in range(size)
    ]


def shared(groups: Sequence[Sequence[Episode]], whole: bool) -> float:
    """Return the share of turns whose state also occurs in another episode of the group.

    Args:
        groups: episodes that began alike.
        whole: if true, a state is all that was said so far; otherwise it is the newest observation.
    """
    turns = met = 0
    for group in groups:
        states = [_states(episode, whole) for episode in group]
        visitors = Counter(state for visited in states for state in {*visited})
        turns += sum(map(len, states))
        met += sum(visitors[state] > 1 for visited in states for state in visited)
    return met / max(1, turns)


def _states(episode: Episode, whole: bool) -> list[tuple[str, ...]]:
    said = [text for pair in zip(episode.observations, episode.actions, strict=False) for text in pair]
    return [tuple(said[: 2 * turn + 1]) if whole else (said[2 * turn],) for turn in range(len(episode))]


def play(policy: LoadedPolicy, task: str, starts: Sequence[Start]) -> list[list[Episode]]:
    """Return the episodes of each group."""
    episodes = in_order(rollout(policy, partial(lmrl.make, task), starts, task=task))
    return [episodes[first : first + SIZE] for first in range(0, len(episodes), SIZE)]


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks anchors`."""
    for task in registry.tasks():
        groups = play(lmrl.load_policy("behaviour", task), task, group_starts(task))
        for what, whole in (("newest observation", False), ("all that was said", True)):
            share = 100 * shared(groups, whole)
            yield Row(f"{task}: turns whose {what} comes again in the group", share, "%", digits=1)
