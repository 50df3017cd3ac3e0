"""GRPO with generalised advantage estimation, where the value of a state is a mean over the group's visits to it."""

from collections.abc import Sequence
from typing import Any

from lmrl.errors import UserError, check_choice, check_range
from lmrl.losses import gae, group_advantages, returns_to_go
from lmrl.modules.gigpo import ANCHORS, states_in_groups
from lmrl.modules.grpo import GRPO
from lmrl.modules.policy_gradient import RolloutEpisode, Vector, joined, split_as

__all__ = ["GAGPO"]

ADVANTAGES = ("grpo", "dr_grpo")


class GAGPO(GRPO):
    """Grouped generalised advantages without a critic (arXiv 2605.13217).

    ``V(s)`` is the mean of the discounted rewards to come over all visits of a group's episodes to ``s``. With it,
    ``delta_t = r_t + gamma V(s_{t+1}) - V(s_t)`` and ``A_t = delta_t + gamma lambda A_{t+1}``, by turn; the advantages
    of a group are standardised, and the clipped ratio is that of the whole action.

    Written from the paper's abstract and summaries, since no code of it was found. Ours: V is 0 behind the last turn,
    also of an episode that was truncated; means count each visit, also several of one episode. With lambda 1 it is
    ``G_t - V(s_t)``, the step advantage of `GiGPO` alone. A state that is visited once has ``V = G``.
    """

    name = "gagpo"

    def __init__(
        self,
        advantage: str = "grpo",
        gamma: float = 0.95,
        gae_lambda: float = 0.95,
        anchor: str = "observation",
        importance_sampling_level: str = "turn",
        **shared: Any,
    ) -> None:
        """Build the policy.

        Args:
            advantage: ``grpo``: the advantages of a group's turns less their mean, divided by their standard deviation;
                ``dr_grpo``: less their mean.
            gamma: discount per turn.
            gae_lambda: decay per turn of later errors of V.
            anchor: what makes states the same: the newest ``observation``, or the whole ``context`` that the policy
                read.
            importance_sampling_level: see `GRPO`.
            **shared: arguments of `GRPO`.

        Raises:
            UserError: for an unknown name, a number outside of its range, and as `GRPO`.
        """
        check_range("[0, 1]", gae_lambda=gae_lambda)
        check_choice(ANCHORS, anchor=anchor)
        super().__init__(
            advantage=advantage, gamma=gamma, importance_sampling_level=importance_sampling_level, **shared
        )
        if advantage not in ADVANTAGES:
            raise UserError("GAGPO compares within groups: advantage must be grpo or dr_grpo")
        self.gae_lambda = gae_lambda
        self.anchor = anchor

    def turn_advantages(self, rollout: Sequence[RolloutEpisode], turn_rewards: Sequence[Vector]) -> list[Vector]:
        """See `GRPO.turn_advantages`."""
        returns = [returns_to_go(reward, self.gamma) for reward in turn_rewards]
        groups = self.groups([episode.episode for episode in rollout])
        states = states_in_groups(rollout, groups, self.anchor)
        # V(s) is the mean return over the group's visits to s: each return less its deviation from that mean.
        deviations = group_advantages(joined(returns), states, "dr_grpo")
        values = split_as(joined(returns) - deviations, returns)

        advantages = []
        for reward, value in zip(turn_rewards, values, strict=True):
            advantages.append(gae(reward, value, 0.0, self.gamma, self.gae_lambda))
        group_of_turn = [group for group, _ in states]
        return split_as(group_advantages(joined(advantages), group_of_turn, self.advantage), returns)
