"""GRPO with a second advantage, among actions that were taken in the same state."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from lmrl.errors import UserError, check_choice, check_range
from lmrl.losses import GROUP_ADVANTAGES, group_advantages, returns_to_go
from lmrl.modules.grpo import GRPO
from lmrl.modules.policy_gradient import RolloutEpisode, Vector, joined, split_as

__all__ = ["ANCHORS", "GiGPO", "states_in_groups"]

ANCHORS = ("observation", "context")
"""The part of two turns that is equal if their states are the same: the newest observation, or all that was read."""


class GiGPO(GRPO):
    """Group-in-group policy optimisation (Feng et al. 2025, arXiv 2505.10978).

    ``A = A_episode + step_weight * A_step``: the first is GRPO's; the second compares, among all turns of a group that
    were taken in the same state, the discounted rewards that followed. It tells apart the actions of one episode where
    states come again; where they never do, each is alone, and nothing is added.
    """

    name = "gigpo"

    def __init__(
        self, step_weight: float = 1.0, step_gamma: float = 0.95, anchor: str = "observation", **shared: Any
    ) -> None:
        """Build the policy.

        Args:
            step_weight: weight of the advantage among turns.
            step_gamma: discount per turn of the rewards that turns are compared by.
            anchor: what makes states the same: the newest ``observation``, as published, or the whole ``context`` that
                the policy read.
            **shared: arguments of `GRPO`.

        Raises:
            UserError: for an unknown anchor, an advantage without groups, a number outside of its range, and as `GRPO`.
        """
        check_range("[0, inf)", step_weight=step_weight)
        check_range("[0, 1]", step_gamma=step_gamma)
        check_choice(ANCHORS, anchor=anchor)
        super().__init__(**shared)
        if self.advantage not in GROUP_ADVANTAGES:
            raise UserError("GiGPO compares within groups: advantage must be grpo, dr_grpo or rloo")
        self.step_weight = step_weight
        self.step_gamma = step_gamma
        self.anchor = anchor

    def turn_advantages(self, rollout: Sequence[RolloutEpisode], turn_rewards: Sequence[Vector]) -> list[Vector]:
        """See `GRPO.turn_advantages`."""
        episode_advantages = super().turn_advantages(rollout, turn_rewards)

        groups = self.groups([episode.episode for episode in rollout])
        states = states_in_groups(rollout, groups, self.anchor)
        # Among turns in the same state, the discounted return that followed decides.
        returns = [returns_to_go(reward, self.step_gamma) for reward in turn_rewards]
        step_advantages = split_as(group_advantages(joined(returns), states, self.advantage), returns)

        advantages = []
        for episode_advantage, step_advantage in zip(episode_advantages, step_advantages, strict=True):
            advantages.append(episode_advantage + self.step_weight * step_advantage)
        return advantages


def anchor_states(episode: RolloutEpisode, anchor: str) -> Sequence[Hashable]:
    """Return the state in which each turn of an episode was taken; what is equal is the same state.

    Args:
        episode: an episode of a round.
        anchor: one of `ANCHORS`.
    """
    if anchor == "observation":
        return episode.episode.observations[:-1]
    states = []
    for segment in episode.segments:
        turn_starts = [0, *(np.flatnonzero(segment.turn_end)[:-1] + 1)]
        for start in turn_starts:
            # All ids that were read up to the state of the turn's first token.
            states.append(segment.ids[: segment.col[start] + 1].tobytes())
    return states


def states_in_groups(
    rollout: Sequence[RolloutEpisode], groups: Sequence[int], anchor: str
) -> list[tuple[int, Hashable]]:
    """Return the group and the state of each turn of a round: turns of different groups are never compared."""
    states = []
    for group, episode in zip(groups, rollout, strict=True):
        for state in anchor_states(episode, anchor):
            states.append((group, state))
    return states
