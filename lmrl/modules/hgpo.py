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

    Turns of a group that share the newest observation can have different histories, and a policy that reads them acts
    on more than it is compared by. So turns are compared in nested groups: at level 0 those with the same newest
    observation, at level ``l`` those that also share the ``l`` observations before it. The advantage of a turn is the
    mean of those within its groups, with weights ``(l + 1) ** level_power``.

    A turn leaves out the levels at which it is alone, or for which its episode is still too short. A turn that is alone
    at all levels has advantage 0. A level at which all returns are equal counts: else the estimate would depend on
    ties.
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
        weighted = np.zeros(len(values))
        weights = np.zeros(len(values))
        for level in range(self.history + 1):
            histories = _histories(rollout, groups, level)
            members = Counter(histories)
            is_compared = np.array([members[one] > 1 for one in histories])
            weight = (level + 1) ** self.level_power * is_compared
            weighted += weight * group_advantages(values, histories, self.advantage)
            weights += weight
        advantages = np.divide(weighted, weights, out=np.zeros(len(values)), where=weights > 0)
        return split_as(advantages, returns)


def _histories(rollout: Sequence[RolloutEpisode], groups: Sequence[int], level: int) -> list[tuple[Hashable, ...]]:
    """Return, for each turn of a round, its group, its observation and those before it; equal ones are compared."""
    histories: list[tuple[Hashable, ...]] = []
    for number, (group, episode) in enumerate(zip(groups, rollout, strict=True)):
        observations = episode.episode.observations[:-1]
        for turn in range(len(observations)):
            if turn < level:
                histories.append(("no such history", number, turn))  # equal to no other
            else:
                histories.append((group, *observations[turn - level : turn + 1]))
    return histories
