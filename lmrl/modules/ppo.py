"""Proximal policy optimisation of a language model over whole episodes, token by token or turn by turn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmrl.errors import UserError, check_range, unknown
from lmrl.losses import (
    Experience,
    PPOLoss,
    Scores,
    explained_variance,
    gae,
    k3,
    ppo_loss,
    token_logprobs,
    whiten,
    with_kl_penalty,
)
from lmrl.models.heads import ValueHead, frozen_copy
from lmrl.models.lm import logits_of, trunk_of
from lmrl.modules.policy_gradient import PolicyGradient, ProcessedRollout, turn_lengths, weights_of
from lmrl.policies import ActorCriticPolicy
from lmrl.tokens.collate import TokenBatch
from lmrl.tokens.segments import Segment
from lmrl.training.rounds import Vector, attach_columns, joined, rewards_of, sampled
from lmrl.types import Episode, Policy

__all__ = ["PPO", "compute_advantages"]

LEVELS = ("token", "turn")


def compute_advantages(
    episodes: Sequence[Episode],
    segments: Sequence[list[Segment]],
    ref_logprobs: Sequence[Vector],
    end_values: Sequence[float],
    *,
    kl_weight: float,
    gamma: float,
    gae_lambda: float,
    level: str = "token",
    loss_agg_mode: str = "token-mean",
) -> ProcessedRollout:
    """KL-penalised rewards, advantages and targets over the steps of each episode, and whitening.

    Args:
        episodes: of a round, with what was sampled.
        segments: of each.
        ref_logprobs: (T,) each, under the reference model.
        end_values: V after the last observation of each; 0 where the rules ended it.
        kl_weight: KL penalty coefficient.
        gamma: discount per step.
        gae_lambda: see `lmrl.losses.gae`.
        level: ``token``: each action token is a step; ``turn``: each action is one, with the sum of its tokens' rewards
            and V of the state in which it begins.
        loss_agg_mode: see `lmrl.losses.loss_weights`.

    Raises:
        UserError: if the episodes do not hold what was noted about exactly the tokens in the segments.
    """
    logprobs, values = (sampled(episodes, name, segments) for name in ("action_logprobs", "action_values"))
    rewards = [
        with_kl_penalty(rewards_of(its), logprob, ref_logprob, kl_weight)
        for its, logprob, ref_logprob in zip(segments, logprobs, ref_logprobs, strict=True)
    ]
    lengths = [np.asarray(its if level == "turn" else [1] * sum(its), dtype=np.int64) for its in turn_lengths(segments)]
    starts = [np.cumsum(its) - its for its in lengths]
    values = [value[start] for value, start in zip(values, starts, strict=True)]
    advantages = [
        gae(np.add.reduceat(reward, start), value, end_value, gamma, gae_lambda)
        for reward, start, value, end_value in zip(rewards, starts, values, end_values, strict=True)
    ]
    of_step = {
        "value": joined(values),
        "advantage": whiten(joined(advantages)),  # over the round
        "target": joined(advantages) + joined(values),  # targets keep their scale
    }
    every = np.concatenate([*lengths, np.zeros(0, dtype=np.int64)])
    columns = {"logprob": joined(logprobs)} | {name: np.repeat(column, every) for name, column in of_step.items()}
    if loss_agg_mode != "token-mean":
        columns["weight"] = weights_of(segments, loss_agg_mode)
    kl = k3(joined(ref_logprobs) - columns["logprob"])
    return ProcessedRollout(
        segments=attach_columns(segments, columns),
        kl=float(kl.mean()) if len(kl) else 0.0,
        metrics={"explained_variance": explained_variance(of_step["value"], of_step["target"])},
    )


class PPO(PolicyGradient):
    """Learns from rounds that it plays itself: clipped ratios, advantages over the action tokens of all turns.

    Schulman et al. 2017, with a KL penalty towards the reference model in the rewards (Ziegler et al. 2019), in the
    form of Abdulhai et al. 2025 with its episode ends corrected. The value head sits on the policy's trunk.

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
        self.ref_model = frozen_copy(self.model)

    def process(
        self, episodes: Sequence[Episode], segments: Sequence[list[Segment]], ref_logprobs: Sequence[Vector]
    ) -> ProcessedRollout:
        """The columns of `lmrl.losses.Experience`; see `compute_advantages`."""
        return compute_advantages(
            episodes,
            segments,
            ref_logprobs,
            self._end_values(episodes, segments),
            kl_weight=float(self.kl_weight),
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
            level=self.level,
            loss_agg_mode=self.loss_agg_mode,
        )

    def _end_values(self, episodes: Sequence[Episode], segments: Sequence[list[Segment]]) -> list[float]:
        """V of the state after the last observation of each episode; 0 where the rules ended it.

        Read again only where the policy that played has not noted it.
        """

        def ends(batch: TokenBatch, counts: Tensor) -> list[float]:
            assert batch.next is not None
            found: list[float] = self.logits_and_values(batch)[1][batch.next[torch.cumsum(counts, 0) - 1]].tolist()
            return found

        truncated = [index for index, its in enumerate(segments) if its[-1].next_ids is not None]
        values = {index: episodes[index].final_value for index in truncated}
        unread = [index for index, value in values.items() if value is None]
        found = self.read([segments[index][-1] for index in unread], ends, bootstrap=True)
        values |= dict(zip(unread, [value for group in found for value in group], strict=True))
        return [values.get(index) or 0.0 for index in range(len(segments))]

    def logits(self, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the policy."""
        return self.logits_and_values(batch)[0]

    def logits_and_values(self, batch: TokenBatch) -> tuple[Scores, Tensor]:
        """(S, vocabulary) logits of the policy, and (S,) V in float32."""
        hidden = self.hidden_states(trunk_of(self.model), batch)
        return logits_of(self.model, hidden), self.v_head(hidden).squeeze(-1)

    def losses(self, batch: TokenBatch) -> PPOLoss:
        """Clipped policy and value loss of a minibatch of a round.

        Raises:
            UserError: for a batch that was never prepared by `prepare_rollout`.
        """
        if batch.columns is None:
            raise UserError("PPO learns from rounds that it has played and prepared, not from recorded batches")
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
        return {f"v_head.{name}": tensor for name, tensor in self.v_head.state_dict().items()}
