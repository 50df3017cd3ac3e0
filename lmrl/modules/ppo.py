"""Proximal policy optimisation of a language model over whole episodes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.datamodules.online import online_datamodule
from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import UserError, check_range
from lmrl.losses import (
    Experience,
    KLController,
    PPOLoss,
    bc_loss,
    explained_variance,
    gae,
    k3,
    ppo_loss,
    token_logprobs,
    whiten,
    with_kl_penalty,
)
from lmrl.models.heads import ValueHead, frozen_copy
from lmrl.models.lm import head_of, trunk_of, vocabulary_of
from lmrl.modules.base import LanguageModule
from lmrl.policies import LMPolicy, RerankPolicy
from lmrl.policies.lm import invalid_ids
from lmrl.tokens.collate import TokenBatch
from lmrl.tokens.encoding import encoder_for
from lmrl.tokens.segments import Segment
from lmrl.training.reporting import RoundReporter, log_now
from lmrl.training.rounds import Vector, attach_columns, joined, read_batches, rewards_of, sampled
from lmrl.types import Episode, Policy

__all__ = ["PPO", "ProcessedRollout", "compute_advantages"]


class ProcessedRollout(NamedTuple):
    """A round as the loss sees it."""

    segments: list[list[Segment]]
    """Of each episode, with the columns of `lmrl.losses.Experience`."""
    kl: float
    """Estimate of the mean KL between policy and reference model, per action token."""
    explained_variance: float
    """Of the targets of V by the values that the policy had."""


def compute_advantages(
    episodes: Sequence[Episode],
    segments: Sequence[list[Segment]],
    ref_logprobs: Sequence[Vector],
    end_values: Sequence[float],
    *,
    kl_weight: float,
    gamma: float,
    gae_lambda: float,
) -> ProcessedRollout:
    """KL-penalised rewards, advantages and targets over the action tokens of all turns of each episode, and whitening.

    Args:
        episodes: of a round, with what was sampled.
        segments: of each.
        ref_logprobs: (T,) each, under the reference model.
        end_values: V after the last observation of each; 0 where the rules ended it.
        kl_weight: KL penalty coefficient.
        gamma: discount per action token.
        gae_lambda: see `lmrl.losses.gae`.

    Raises:
        UserError: if the episodes do not hold what was noted about exactly the tokens in the segments.
    """
    logprobs, values = (sampled(episodes, name, segments) for name in ("action_logprobs", "action_values"))
    rewards = [
        with_kl_penalty(rewards_of(its), logprob, ref_logprob, kl_weight)
        for its, logprob, ref_logprob in zip(segments, logprobs, ref_logprobs, strict=True)
    ]
    advantages = [
        gae(reward, value, end_value, gamma, gae_lambda)
        for reward, value, end_value in zip(rewards, values, end_values, strict=True)
    ]
    columns = {
        "logprob": joined(logprobs),
        "value": joined(values),
        "advantage": whiten(joined(advantages)),  # over the round
        "target": joined(advantages) + joined(values),  # targets keep their scale
    }
    kl = k3(joined(ref_logprobs) - columns["logprob"])
    return ProcessedRollout(
        segments=attach_columns(segments, columns),
        kl=float(kl.mean()) if len(kl) else 0.0,
        explained_variance=explained_variance(columns["value"], columns["target"]),
    )


class PPO(LanguageModule):
    """Learns from rounds that it plays itself: clipped ratios, advantages over the action tokens of all turns.

    Schulman et al. 2017, with a KL penalty towards the reference model in the rewards (Ziegler et al. 2019), in the
    form of Abdulhai et al. 2025 with its episode ends corrected. The value head sits on the policy's trunk.
    """

    name = "ppo"
    starts_from_bc = True
    unused_in_rollouts: tuple[str, ...] = ("ref_model",)
    reporter: RoundReporter
    invalid: Tensor
    kl_weight: Tensor

    def __init__(
        self,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip: float = 0.2,
        value_clip: float | None = 0.2,
        value_weight: float = 0.5,
        entropy_weight: float = 0.0,
        kl_weight: float = 0.001,
        kl_target: float | None = None,
        kl_horizon: float | None = None,
        bc_weight: float = 0.0,
        head_bias: float = 0.0,
        **shared: Any,
    ) -> None:
        """Build the policy, its value head, and the reference model: a frozen copy of what it starts from.

        Args:
            gamma: discount per action token.
            gae_lambda: of the advantages: 0 trusts V after one token, 1 trusts the rewards alone.
            clip: how far the ratio of new to old probability may pay to move from 1.
            value_clip: likewise for V and its old value; None does not clip.
            value_weight: weight of the value loss.
            entropy_weight: weight of an entropy bonus; 0 as published.
            kl_weight: KL penalty coefficient, per action token.
            kl_target: KL per action token towards which the coefficient is moved after each round; None keeps it.
            kl_horizon: episodes that it takes to change the coefficient by a factor of about e; goes with `kl_target`.
            bc_weight: weight of the BC loss on recorded episodes; needs ``data.init_args.offline``.
            head_bias: V everywhere at the start; near the data's typical return.
            **shared: arguments of `LanguageModule`.

        Raises:
            UserError: only one of `kl_target` and `kl_horizon`, a number outside of its range, and as `LanguageModule`.
        """
        check_range("[0, 1]", gamma=gamma, gae_lambda=gae_lambda)
        check_range("[0, inf)", clip=clip, value_clip=value_clip, value_weight=value_weight)
        check_range("[0, inf)", kl_weight=kl_weight, entropy_weight=entropy_weight, bc_weight=bc_weight)
        check_range("(-inf, inf)", head_bias=head_bias)
        super().__init__(**shared)
        self.loss_arguments: dict[str, Any] = {
            "clip": clip, "value_clip": value_clip, "value_weight": value_weight, "entropy_weight": entropy_weight
        }  # fmt: skip
        self.gamma, self.gae_lambda, self.bc_weight = gamma, gae_lambda, bc_weight
        self.kl_controller = KLController(kl_target, kl_horizon)
        self.reporter = RoundReporter(self.name)
        self.register_buffer("kl_weight", torch.tensor(kl_weight, dtype=torch.float64))
        self.register_buffer("invalid", self._invalid(None), persistent=False)
        self.build_values(head_bias)

    def build_values(self, head_bias: float) -> None:
        """Put the value head on the policy, and keep a frozen copy of the policy as `ref_model`."""
        self.v_head = ValueHead(int(self.model.config.hidden_size), 1, head_bias)
        self.ref_model: nn.Module = frozen_copy(self.model)

    def setup(self, stage: str) -> None:
        """Have rounds prepared.

        Raises:
            UserError: if the datamodule does not play rounds, keeps old ones, or lacks what `bc_weight` needs.
        """
        data = online_datamodule(self.trainer, type(self).__name__)
        super().setup(stage)
        self.invalid = self._invalid(encoder_for(self.tokenizer, self.window).end).to(self.invalid.device)
        for name, wanted in (("keep_replay", False), ("offline", self.bc_weight > 0.0)):
            if data.hparams[name] != wanted:
                raise UserError(f"with bc_weight {self.bc_weight}, data.init_args.{name} must be {wanted}")

    def batch_spec(self) -> BatchSpec:
        """Rounds as `prepare_rollout` makes them; it is looked up late, since sharding wraps it."""
        return replace(super().batch_spec(), post_rollout=lambda *played: self.prepare_rollout(*played))

    # -- once per round -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def prepare_rollout(self, episodes: Sequence[Episode], segments: Sequence[list[Segment]]) -> list[list[Segment]]:
        """Compute the columns of `lmrl.losses.Experience` for each action token, and the next KL penalty coefficient.

        Args:
            episodes: of the round, with what was sampled.
            segments: of each.

        Raises:
            UserError: if the episodes do not hold what was noted about exactly the tokens in the segments.
        """
        kl_weight = float(self.kl_weight)
        found = compute_advantages(
            episodes,
            segments,
            self._ref_logprobs(segments),
            self._end_values(segments),
            kl_weight=kl_weight,
            gamma=self.gamma,
            gae_lambda=self.gae_lambda,
        )
        metrics = {"kl": found.kl, "kl_weight": kl_weight, "explained_variance": found.explained_variance}
        log_now(self.trainer, {f"{self.name}/{name}": number for name, number in metrics.items()})
        self.kl_weight.fill_(self.kl_controller.after(kl_weight, found.kl, len(episodes)))
        return found.segments

    def _ref_logprobs(self, segments: Sequence[list[Segment]]) -> list[Vector]:
        """(T,) per episode: the log-probability of each action token under the reference model."""

        def logprobs(batch: TokenBatch, counts: Tensor) -> Vector:
            found = token_logprobs(self.ref_logits(batch), batch.state, batch.token, self.invalid)
            return found.logprob.double().cpu().numpy()

        found = self._read([segment for its in segments for segment in its], logprobs, bootstrap=False)
        ends = np.cumsum([sum(len(segment.col) for segment in its) for its in segments])
        return np.split(np.concatenate([np.zeros(0), *found]), ends)[:-1]

    def _end_values(self, segments: Sequence[list[Segment]]) -> list[float]:
        """V of the state after the last observation of each episode; 0 where the rules ended it."""

        def ends(batch: TokenBatch, counts: Tensor) -> list[float]:
            assert batch.next is not None
            found: list[float] = self.logits_and_values(batch)[1][batch.next[torch.cumsum(counts, 0) - 1]].tolist()
            return found

        values = [0.0] * len(segments)
        truncated = [index for index, its in enumerate(segments) if its[-1].next_ids is not None]
        found = self._read([segments[index][-1] for index in truncated], ends, bootstrap=True)
        for index, value in zip(truncated, [value for group in found for value in group], strict=True):
            values[index] = value
        return values

    # -- per batch ----------------------------------------------------------------------------------------------

    def logits_and_values(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """(S, vocabulary) logits of the policy, and (S,) V in float32."""
        hidden = self.hidden_states(trunk_of(self.model), batch)
        return head_of(self.model)(hidden), self.v_head(hidden).squeeze(-1)

    def ref_logits(self, batch: TokenBatch) -> Tensor:
        """(S, vocabulary) logits of the reference model."""
        assert isinstance(self.ref_model, PreTrainedModel)
        logits: Tensor = head_of(self.ref_model)(self.hidden_states(trunk_of(self.ref_model), batch))
        return logits

    def losses(self, batch: TokenBatch) -> PPOLoss:
        """Clipped policy and value loss of a minibatch of a round.

        Raises:
            UserError: for a batch that was never prepared by `prepare_rollout`.
        """
        if batch.columns is None:
            raise UserError("PPO learns from rounds that it has played and prepared, not from recorded batches")
        logits, value = self.logits_and_values(batch)
        now = token_logprobs(logits, batch.state, batch.token, self.invalid)
        return ppo_loss(now, value[batch.state], Experience(**batch.columns), **self.loss_arguments)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """See `LanguageModule.training_step`; a BC batch beside it adds its loss, divided by its own expectation."""
        if isinstance(batch, TokenBatch):
            return super().training_step(batch, batch_idx)
        recorded = batch["bc"]
        imitation: Tensor = bc_loss(self.logits_and_values(recorded)[0], recorded.state, recorded.token).loss
        self.reporter.train_recorded(imitation, recorded)
        clipped = super().training_step(batch["round"], batch_idx)
        loss: Tensor = clipped + self.bc_weight * imitation * recorded.scale
        return loss

    # -- playing, checkpoints -----------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> "PPO":
        """Training mode for what learns; the reference model stays in eval mode."""
        super().train(mode)
        self.ref_model.train(False)
        return self

    def policy(self, **settings: Any) -> Policy:
        """Sample from the model; replies hold V. `settings` as of `lmrl.policies.LMPolicy`."""
        return LMPolicy(self.model, self.tokenizer, self.context_window(), v_head=self.v_head, **settings)

    def reranker(self, proposals: Sequence[str], **settings: Any) -> RerankPolicy:
        """By likelihood; `settings` as of `lmrl.policies.RerankPolicy`."""
        return RerankPolicy(self.model, self.tokenizer, self.context_window(), proposals=proposals, **settings)

    def value_state_dict(self) -> dict[str, Tensor]:
        """The value head (``v_head.*``), which reads the language model's own hidden vectors."""
        return {f"v_head.{name}": tensor for name, tensor in self.v_head.state_dict().items()}

    def _read(self, segments: Sequence[Segment], use: Any, bootstrap: bool) -> list[Any]:
        size = int(online_datamodule(self.trainer, self.name).hparams["batch_size"])
        return read_batches(segments, use, size=size, bootstrap=bootstrap, device=self.device)

    def _invalid(self, end: int | None) -> Tensor:
        """(vocabulary,) bool: ids that are never sampled."""
        return invalid_ids(self.tokenizer, vocabulary_of(self.model), torch.device("cpu"), end)
