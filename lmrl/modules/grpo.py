"""Policy gradients without a critic: GRPO, Dr. GRPO, RLOO, ReBN, and a baseline by turn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lmrl.errors import UserError, check_choice, check_range
from lmrl.losses import (
    GROUP_ADVANTAGES,
    KL_ESTIMATORS,
    GRPOColumns,
    PolicyLoss,
    Scores,
    group_advantages,
    group_spreads,
    grpo_loss,
    loss_weights,
    returns_to_go,
    token_logprobs,
    whiten,
    with_kl_penalty,
)
from lmrl.models.critic import TurnBaseline
from lmrl.models.heads import frozen_copy
from lmrl.models.lm import logits_of, trunk_of
from lmrl.modules.policy_gradient import PolicyGradient, RolloutEpisode, Vector, joined, set_column, split_as
from lmrl.tokens.collate import TokenBatch
from lmrl.types import Episode

__all__ = ["GRPO"]

ADVANTAGES = (*GROUP_ADVANTAGES, "rebn", "turn_baseline")
RATIOS = ("token", "turn")


class GRPO(PolicyGradient):
    """Policy gradients without a critic: an episode's advantage is its return over those of other episodes.

    ``grpo``, ``dr_grpo`` and ``rloo`` compare the episodes of a group, which begin alike (Shao et al. 2024, Liu et al.
    2025, Ahmadian et al. 2024; see `lmrl.losses.group_advantages`). ``rebn`` needs no groups: it whitens the return to
    come of each turn over all turns of the round (Liu et al. 2025, arXiv 2510.01051). ``turn_baseline`` does the same
    after it has subtracted the mean return that followed this turn in earlier rounds. All tokens of an action have the
    same advantage.
    """

    name = "grpo"

    def __init__(
        self,
        advantage: str = "grpo",
        gamma: float = 1.0,
        importance_sampling_level: str = "token",
        use_kl_in_reward: bool = False,
        kl_loss_type: str = "k3",
        **shared: Any,
    ) -> None:
        """Build the policy, and the reference model: a frozen copy of what it starts from.

        Args:
            advantage: ``grpo``, ``dr_grpo``, ``rloo``, ``rebn`` or ``turn_baseline``.
            gamma: discount per turn.
            importance_sampling_level: clip the ratio of each ``token``, or for ``turn`` that of the whole action.
            use_kl_in_reward: take the KL penalty off the rewards, as PPO does; else it is a term of the loss.
            kl_loss_type: estimator of the KL: ``k1``, ``k2`` or ``k3``; see `lmrl.losses.kl_penalty`.
            **shared: arguments of `PolicyGradient`.

        Raises:
            UserError: for an unknown name, a number outside of its range, and as `PolicyGradient`.
        """
        check_range("[0, 1]", gamma=gamma)
        check_choice(ADVANTAGES, advantage=advantage)
        check_choice(RATIOS, importance_sampling_level=importance_sampling_level)
        check_choice(KL_ESTIMATORS, kl_loss_type=kl_loss_type)
        super().__init__(**shared)
        self.loss_arguments |= {"kl_loss_type": kl_loss_type}
        self.advantage = advantage
        self.gamma = gamma
        self.use_kl_in_reward = use_kl_in_reward
        self.by_turn = importance_sampling_level == "turn"
        self.baseline = TurnBaseline() if advantage == "turn_baseline" else None
        self.ref_model = frozen_copy(self.model)

    def process(self, rollout: Sequence[RolloutEpisode]) -> dict[str, float]:
        """Set the columns of `lmrl.losses.GRPOColumns`."""
        # The KL penalty is part of the rewards or of the loss.
        kl_weight = float(self.kl_weight) if self.use_kl_in_reward else 0.0
        turn_rewards = []
        for episode in rollout:
            reward = with_kl_penalty(episode.reward, episode.logprob, episode.ref_logprob, kl_weight)
            turn_rewards.append(np.add.reduceat(reward, episode.turn_starts))  # (turns,)

        advantages = self.turn_advantages(rollout, turn_rewards)
        if np.allclose(joined(advantages), 0.0):
            rank_zero_warn(
                "all advantages of this round are 0 (do its returns differ?): nothing can be learned from it"
            )
        for episode, advantage in zip(rollout, advantages, strict=True):
            episode.columns["logprob"] = episode.logprob
            episode.columns["ref_logprob"] = episode.ref_logprob
            # (T,) All tokens of an action have the advantage of their turn.
            episode.columns["advantage"] = np.repeat(advantage, episode.turn_lengths)
        set_column(rollout, "weight", loss_weights([episode.turn_lengths for episode in rollout], self.loss_agg_mode))
        return self.spread([episode.episode for episode in rollout])

    def turn_advantages(self, rollout: Sequence[RolloutEpisode], turn_rewards: Sequence[Vector]) -> list[Vector]:
        """Return the advantage of each turn of each episode.

        Args:
            rollout: the episodes of a round.
            turn_rewards: for each episode, one per turn.

        Raises:
            UserError: if episodes are to be compared with their group and there is none.
        """
        returns = [returns_to_go(reward, self.gamma) for reward in turn_rewards]
        if self.advantage == "rebn":
            return split_as(whiten(joined(returns)), returns)
        if self.baseline is not None:
            means = [self.baseline.values(np.arange(len(turn_returns))) for turn_returns in returns]
            self.baseline.update(returns)
            return split_as(whiten(joined(returns) - joined(means)), returns)
        # The return of the whole episode is that of its first turn.
        episode_returns = [float(turn_returns[0]) for turn_returns in returns]
        groups = self.groups([episode.episode for episode in rollout])
        advantages = group_advantages(episode_returns, groups, self.advantage)
        return [np.full(len(reward), advantage) for reward, advantage in zip(turn_rewards, advantages, strict=True)]

    def spread(self, episodes: Sequence[Episode]) -> dict[str, float]:
        """Return the spread of returns within the groups of a round, under the names that TRL logs."""
        if self.advantage not in GROUP_ADVANTAGES or not episodes:
            return {}
        # The spread of the plain returns, without discount and KL penalty.
        spreads = group_spreads([episode.total_reward for episode in episodes], self.groups(episodes))
        same = np.isclose(spreads, 0.0)
        return {"reward_std": float(spreads.mean()), "frac_reward_zero_std": float(same.mean())}

    def groups(self, episodes: Sequence[Episode]) -> list[int]:
        """Return the group of each episode; see `lmrl.callbacks.RolloutCollection`.

        Raises:
            UserError: they were not collected in groups.
        """
        # An episode can be alone in its group, if the others failed. Its advantage is 0.
        groups = [int(episode.info.get("group", -1)) for episode in episodes]
        if -1 in groups:
            alone = ', or model.init_args.advantage to "rebn"' if type(self) is GRPO else ""
            raise UserError(
                f"{type(self).__name__} compares episodes that began alike: set group_size of RolloutCollection to 2 "
                f"or more{alone}"
            )
        return groups

    def logits(self, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the policy."""
        return logits_of(self.model, self.hidden_states(trunk_of(self.model), batch))

    def losses(self, batch: TokenBatch) -> PolicyLoss:
        """Clipped policy loss of a minibatch of a round, and its KL penalty.

        Raises:
            UserError: for a batch that was never prepared by `prepare_rollout`.
        """
        if batch.columns is None:
            raise UserError(f"{type(self).__name__} learns from rounds that it has played, not from recorded batches")
        now = token_logprobs(self.logits(batch), batch.state, batch.token, self.invalid)
        # None: there is no KL term. 0.0: it is only logged, because the penalty is already part of the rewards.
        kl_weight: Tensor | float | None
        if not self.has_kl_penalty:
            kl_weight = None  # the reference model may have scored only a sample of the episodes
        elif self.use_kl_in_reward:
            kl_weight = 0.0
        else:
            kl_weight = self.kl_weight  # stays a tensor: float() would wait for the GPU
        turn_end = batch.turn_end if self.by_turn else None
        return grpo_loss(
            now,
            GRPOColumns(**batch.columns),
            kl_weight=kl_weight,
            turn_end=turn_end,
            importance_cap=self.step_importance_cap,
            **self.loss_arguments,
        )
