"""GRPO whose advantages compare turns with the same observations, and those with the same history more."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from lmrl.errors import UserError, check_range
from lmrl.losses import GROUP_ADVANTAGES, group_advantages, returns_to_go
from lmrl.modules.grpo import GRPO
from lmrl.modules.policy_gradient import RolloutEpisode, Vector, joined, split_as

__all__ = ["HGPO"]


class HGPO(GRPO):
    """Hierarchy-of-groups policy optimisation (arXiv 2602.22817).

    Turns of a group that share the newest observation can have different histories, and a policy may act on these. So
    turns are compared at several levels: at level 0 with the turns that have the same newest observation, at level
    ``l`` with those that also share the ``l`` observations before it. The advantage of a turn is the mean of its
    advantages at the levels, with weights ``(l + 1) ** level_power``.

    The mean leaves out the levels at which a turn has no peers, because no other turn shares these observations or its
    episode is still too short. A turn without peers at any level has advantage 0. A level at which all returns are
    equal counts, or the estimate would depend on ties.
    """

    name = "hgpo"

    def __init__(
        self,
        advantage: str = "dr_grpo",
        gamma: float = 0.95,
        history: int = 2,
        level_power: float = 1.0,
        **shared: Any,
    ) -> None:
        """Build the policy.

        Args:
            advantage: how returns of turns are compared: ``dr_grpo`` less their mean, as published; ``grpo`` or
                ``rloo``, see `lmrl.losses.group_advantages`.
            gamma: discount per turn.
            history: the highest level; 0 compares by the newest observation alone.
            level_power: how much more the higher levels count; 0: all levels alike.
            **shared: arguments of `GRPO`.

        Raises:
            UserError: for an advantage without groups, a number outside of its range, and as `GRPO`.
        """
        check_range("[0, inf)", history=history, level_power=level_power)
        super().__init__(advantage=advantage, gamma=gamma, **shared)
        if advantage not in GROUP_ADVANTAGES:
            raise UserError("HGPO compares within groups: advantage must be grpo, dr_grpo or rloo")
        self.history = history
        self.level_power = level_power

    def turn_advantages(self, rollout: Sequence[RolloutEpisode], turn_rewards: Sequence[Vector]) -> list[Vector]:
        """See `GRPO.turn_advantages`."""
        returns = [returns_to_go(reward, self.gamma) for reward in turn_rewards]
        values = joined(returns)  # (turns of the round,)
        groups = self.groups([episode.episode for episode in rollout])
        weighted_sum = np.zeros(len(values))
        weight_sum = np.zeros(len(values))
        for level in range(self.history + 1):
            keys = _history_keys(rollout, groups, level)  # one per turn; turns with equal keys are compared
            sizes = Counter(keys)
            has_peers = np.array([sizes[key] > 1 for key in keys])
            weight = (level + 1) ** self.level_power * has_peers
            weighted_sum += weight * group_advantages(values, keys, self.advantage)
            weight_sum += weight
        # A turn without peers at any level has advantage 0.
        advantages = np.divide(weighted_sum, weight_sum, out=np.zeros(len(values)), where=weight_sum > 0)
        return split_as(advantages, returns)


def _history_keys(rollout: Sequence[RolloutEpisode], groups: Sequence[int], level: int) -> list[tuple[Hashable, ...]]:
    """Return a key for each turn of a round: its group, its observation and the `level` observations before it."""
    keys: list[tuple[Hashable, ...]] = []
    for number, (group, episode) in enumerate(zip(groups, rollout, strict=True)):
        observations = episode.episode.observations[:-1]
        for turn in range(len(observations)):
            if turn < level:
                keys.append(("no such history", number, turn))  # equal to no other key
            else:
                keys.append((group, *observations[turn - level : turn + 1]))
    return keys
