"""Proximal policy optimisation of a language model over whole episodes, token by token or turn by turn."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmrl.errors import UserError, check_range, unknown
from lmrl.losses import (
    Experience,
    PolicyLoss,
    Scores,
    explained_variance,
    gae,
    loss_weights,
    ppo_loss,
    token_logprobs,
    whiten,
    with_kl_penalty,
)
from lmrl.models.heads import ValueHead, frozen_copy
from lmrl.models.lm import logits_of, trunk_of
from lmrl.modules.policy_gradient import PolicyGradient, RolloutEpisode, joined, sampled, set_column, split_as
from lmrl.policies import ActorCriticPolicy
from lmrl.tokens.collate import TokenBatch
from lmrl.types import Policy

__all__ = ["PPO", "compute_advantages"]

LEVELS = ("token", "turn")


def compute_advantages(
    rollout: Sequence[RolloutEpisode],
    end_values: Sequence[float],
    *,
    kl_weight: float,
    gamma: float,
    gae_lambda: float,
    level: str = "token",
    loss_agg_mode: str = "token-mean",
) -> dict[str, float]:
    """Set the columns of `lmrl.losses.Experience`: KL-penalised rewards become advantages and value targets.

    Args:
        rollout: the episodes of a round.
        end_values: V after the last observation of each; 0 where the rules ended it.
        kl_weight: KL penalty coefficient.
        gamma: discount per step.
        gae_lambda: see `lmrl.losses.gae`.
        level: ``token``: each action token is a step; ``turn``: each action is one, with the sum of its tokens' rewards
            and V of the state in which it begins.
        loss_agg_mode: see `lmrl.losses.loss_weights`.

    Returns:
        ``explained_variance`` of the values.

    Raises:
        UserError: if the episodes do not hold V of exactly the tokens in their segments.
    """
    values = []
    advantages = []
    step_lengths = []
    for episode, end_value in zip(rollout, end_values, strict=True):
        # (T,) the reward of each action token, less the KL penalty.
        reward = with_kl_penalty(episode.reward, episode.logprob, episode.ref_logprob, kl_weight)
        # (steps,) A step is a token or a turn. Its reward is the sum over its tokens, its V that of its first state.
        starts = episode.turn_starts if level == "turn" else np.arange(episode.num_tokens)
        step_reward = np.add.reduceat(reward, starts)
        value = sampled(episode.episode, "action_values", episode.segments)[starts]
        advantage = gae(step_reward, value, end_value, gamma, gae_lambda)
        values.append(value)
        advantages.append(advantage)
        step_lengths.append(np.diff(starts, append=episode.num_tokens))

    # Advantages are whitened over all steps of the round, so a long turn counts once. Targets keep their scale.
    whitened = split_as(whiten(joined(advantages)), advantages)
    for index, episode in enumerate(rollout):
        # (T,) Every token of a step has the numbers of the step.
        lengths = step_lengths[index]
        episode.columns["logprob"] = episode.logprob
        episode.columns["value"] = np.repeat(values[index], lengths)
        episode.columns["advantage"] = np.repeat(whitened[index], lengths)
        episode.columns["target"] = np.repeat(advantages[index] + values[index], lengths)
    if loss_agg_mode != "token-mean":
        set_column(rollout, "weight", loss_weights([episode.turn_lengths for episode in rollout], loss_agg_mode))
    value = joined(values)
    return {"explained_variance": explained_variance(value, joined(advantages) + value)}


class PPO(PolicyGradient):
    """PPO of a language model: clipped ratios, advantages over the action tokens of all turns, V on the policy's trunk.

    Schulman et al. 2017, with a KL penalty towards the reference model in the rewards (Ziegler et al. 2019), in the
    form of Abdulhai et al. 2025 with its episode ends corrected.

    With ``level: turn`` the turn is the step: V, discount and advantages by turn, and the ratio that of the whole
    action. Zeng, Wei, Brown, Frunza, Nevmyvaka and Hong (2025, arXiv 2505.11821) argue for credit by turn; theirs is
    GRPO with turn-level advantages, without a critic.
    """

    name = "ppo"

    def __init__(
        self,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        level: str = "token",
        value_clip: float | None = 0.2,
        value_weight: float = 0.5,
        head_bias: float = 0.0,
        loss_agg_mode: str | None = None,
        **shared: Any,
    ) -> None:
        """Build the policy, its value head, and the reference model: a frozen copy of what it starts from.

        Args:
            gamma: discount per step.
            gae_lambda: of the advantages: 0 trusts V after one step, 1 trusts the rewards alone.
            level: what a step is, ``token`` or ``turn``.
            value_clip: how far V may pay to move from its old value; None does not clip.
            value_weight: weight of the value loss.
            head_bias: V everywhere at the start; near the data's typical return.
            loss_agg_mode: what the loss is a mean over; None: steps, ``token-mean`` or ``turn-mean``.
            **shared: arguments of `PolicyGradient`.

        Raises:
            UserError: for an unknown level, a number outside of its range, and as `PolicyGradient`.
        """
        check_range("[0, 1]", gamma=gamma, gae_lambda=gae_lambda)
        check_range("[0, inf)", value_clip=value_clip, value_weight=value_weight)
        check_range("(-inf, inf)", head_bias=head_bias)
        if level not in LEVELS:
            raise unknown("level", level, LEVELS)
        super().__init__(loss_agg_mode=loss_agg_mode or f"{level}-mean", **shared)
        self.loss_arguments |= {"value_clip": value_clip, "value_weight": value_weight}
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self.level = level
        self.by_turn = level == "turn"
        self.build_values(head_bias)

    def build_values(self, head_bias: float) -> None:
        """Put the value head on the policy, and keep a frozen copy of the policy as `ref_model`."""
        self.v_head = ValueHead(int(self.model.config.hidden_size), 1, head_bias)
        # The policy starts from a BC run, so that run is the reference.
        self.ref_model = frozen_copy(self.model)

    def process(self, rollout: Sequence[RolloutEpisode]) -> dict[str, float]:
        """Set the columns of `lmrl.losses.Experience`; see `compute_advantages`."""
        return compute_advantages(
            rollout,
            self._end_values(rollout),
            kl_weight=float(self.kl_weight),
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            level=self.level,
            loss_agg_mode=self.loss_agg_mode,
        )

    def _end_values(self, rollout: Sequence[RolloutEpisode]) -> list[float]:
        """Return V of the state after the last observation of each episode; 0 where the rules ended it.

        The policy that played has usually noted it. Otherwise the state is read again.
        """

        def values_after(batch: TokenBatch, counts: Tensor) -> list[float]:
            assert batch.next is not None
            last_tokens = torch.cumsum(counts, 0) - 1
            values: list[float] = self.logits_and_values(batch)[1][batch.next[last_tokens]].tolist()
            return values

        end_values = [0.0] * len(rollout)
        unread = []
        for index, episode in enumerate(rollout):
            if episode.segments[-1].next_ids is None:  # the rules ended it
                continue
            if episode.episode.final_value is None:
                unread.append(index)
            else:
                end_values[index] = episode.episode.final_value
        last_segments = [rollout[index].segments[-1] for index in unread]
        batches = self.read_batches(last_segments, values_after, bootstrap=True)
        for index, value in zip(unread, chain.from_iterable(batches), strict=True):
            end_values[index] = value
        return end_values

    def logits(self, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the policy."""
        return self.logits_and_values(batch)[0]

    def logits_and_values(self, batch: TokenBatch) -> tuple[Scores, Tensor]:
        """(S, vocabulary) logits of the policy, and (S,) V in float32."""
        hidden = self.hidden_states(trunk_of(self.model), batch)
        return logits_of(self.model, hidden), self.v_head(hidden).squeeze(-1)

    def losses(self, batch: TokenBatch) -> PolicyLoss:
        """Clipped policy and value loss of a minibatch of a round.

        Raises:
            UserError: for a batch that was never prepared by `prepare_rollout`.
        """
        if batch.columns is None:
            raise UserError("PPO learns from rounds that it has played and prepared, not from recorded batches")
        # V shares the trunk and its gradient with the policy.
        logits, value = self.logits_and_values(batch)
        now = token_logprobs(logits, batch.state, batch.token, self.invalid)
        turn_end = batch.turn_end if self.by_turn else None
        return ppo_loss(now, value[batch.state], Experience(**batch.columns), turn_end=turn_end, **self.loss_arguments)

    def action_scores(self, batch: TokenBatch) -> Tensor:
        """See `PolicyGradient.action_scores`; (N, 2) with V."""
        logits, value = self.logits_and_values(batch)
        logprob = token_logprobs(logits, batch.state, batch.token, self.invalid).logprob
        return torch.stack([logprob, value[batch.state].float()], dim=-1)

    def policy(self, **settings: Any) -> Policy:
        """Sample from the model; replies hold V. `settings` as of `lmrl.policies.ActorCriticPolicy`."""
        window = self.context_window()
        return ActorCriticPolicy(self.model, self.tokenizer, window, v_head=self.v_head, **settings)

    def value_state_dict(self) -> dict[str, Tensor]:
        """The value head (``v_head.*``), which reads the language model's own hidden vectors."""
        return self.v_head.state_dict(prefix="v_head.")
