"""Parts that PPO and GRPO share: collecting rollouts, a reference model, and per-token data."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.datamodules.online import online_datamodule
from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import UserError, check_range, unknown
from lmrl.losses import (
    LOSS_AGG_MODES,
    KLController,
    Scores,
    bc_loss,
    importance_weights,
    k3,
    token_logprobs,
)
from lmrl.models.lm import logits_of, trunk_of, vocabulary_of
from lmrl.modules.base import LanguageModule
from lmrl.policies import LMPolicy, RerankPolicy
from lmrl.policies.lm import invalid_ids
from lmrl.tokens.collate import TokenBatch
from lmrl.tokens.encoding import encoder_for
from lmrl.tokens.segments import Segment
from lmrl.training.reporting import RoundReporter, log_now
from lmrl.training.rounds import (
    RolloutCorrection,
    RolloutEpisode,
    Vector,
    joined,
    logprob_gaps,
    read_batches,
    rescored,
    rollout_episode,
    sampled,
    set_column,
)
from lmrl.types import Episode, Policy

__all__ = ["PolicyGradient"]


class PolicyGradient(LanguageModule):
    """On-policy learning with a clipped importance ratio between the current policy and the one that sampled.

    A subclass computes what the loss reads about each action token of a round (`process`), and the loss (`losses`).
    """

    starts_from_bc = True
    unused_in_rollouts: tuple[str, ...] = ("ref_model",)
    #: Whether ratios of new to old probabilities are those of whole actions.
    by_turn = False
    #: What is done about rounds that another program has sampled; None: the module's own policy samples them.
    correction: RolloutCorrection | None = None
    reporter: RoundReporter
    ref_model: nn.Module
    invalid: Tensor
    kl_weight: Tensor

    def __init__(
        self,
        clip: float = 0.2,
        clip_high: float | None = None,
        entropy_weight: float = 0.0,
        kl_weight: float = 0.001,
        kl_target: float | None = None,
        kl_horizon: float | None = None,
        bc_weight: float = 0.0,
        loss_agg_mode: str = "token-mean",
        **shared: Any,
    ) -> None:
        """Build the policy, which the algorithm starts from.

        Args:
            clip: how far the ratio of new to old probability may pay to move from 1.
            clip_high: likewise upwards, if that is another number.
            entropy_weight: weight of an entropy bonus; 0 as published.
            kl_weight: KL penalty coefficient, per action token.
            kl_target: KL per action token towards which the coefficient is moved after each round; None keeps it.
            kl_horizon: episodes that it takes to change the coefficient by a factor of about e; goes with `kl_target`.
            bc_weight: weight of the BC loss on recorded episodes; needs ``data.init_args.offline``.
            loss_agg_mode: what the loss is a mean over; see `lmrl.losses.loss_weights`.
            **shared: arguments of `LanguageModule`.

        Raises:
            UserError: only one of `kl_target` and `kl_horizon`, a number outside of its range, adapters with dropout,
                and as `LanguageModule`.
        """
        lora = shared.get("lora") or {}
        if lora.get("lora_dropout"):
            raise UserError(
                f"{type(self).__name__} needs lora.lora_dropout 0, got {lora['lora_dropout']}: rounds are played "
                "without dropout, and its ratios compare updates with them"
            )
        check_range("[0, inf)", clip=clip, clip_high=clip_high)
        check_range("[0, inf)", kl_weight=kl_weight, entropy_weight=entropy_weight, bc_weight=bc_weight)
        if loss_agg_mode not in LOSS_AGG_MODES:
            raise unknown("loss_agg_mode", loss_agg_mode, LOSS_AGG_MODES)
        super().__init__(**shared)
        self.loss_arguments: dict[str, Any] = {"clip": clip, "clip_high": clip_high, "entropy_weight": entropy_weight}
        self.bc_weight = bc_weight
        self.loss_agg_mode = loss_agg_mode
        self.kl_controller = KLController(kl_target, kl_horizon)
        self.reporter = RoundReporter(self.name)
        self.register_buffer("kl_weight", torch.tensor(kl_weight, dtype=torch.float64))
        self.register_buffer("invalid", self._invalid(None), persistent=False)

    @abstractmethod
    def process(self, rollout: Sequence[RolloutEpisode]) -> dict[str, float]:
        """Set `RolloutEpisode.columns`, which the loss reads, for each episode of a round.

        Returns:
            Numbers to log, by name.
        """

    @abstractmethod
    def logits(self, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the policy."""

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
        """Rounds as `prepare_rollout` makes them."""
        return replace(super().batch_spec(), learner=self)

    @torch.no_grad()
    def prepare_rollout(self, episodes: Sequence[Episode], segments: Sequence[list[Segment]]) -> list[list[Segment]]:
        """Attach to each action token what the loss must know of it, and compute the next KL penalty coefficient.

        Args:
            episodes: of the round, with what was sampled.
            segments: of each.

        Raises:
            UserError: if the episodes do not hold what was noted about exactly the tokens in the segments.
        """
        importance = None
        if self.correction is not None:
            episodes, importance = self._corrected(self.correction, episodes, segments)

        ref_logprobs = self._ref_logprobs(segments)
        rollout = []
        for episode, parts, ref_logprob in zip(episodes, segments, ref_logprobs, strict=True):
            rollout.append(rollout_episode(episode, parts, ref_logprob))

        metrics = self.process(rollout)
        if importance is not None:
            set_column(rollout, "importance", importance)

        # The controller sees the KL of the whole round, and its coefficient applies from the next round on.
        ref_logprob = joined(episode.ref_logprob for episode in rollout)
        kl = k3(ref_logprob - joined(episode.logprob for episode in rollout))
        kl_mean = float(kl.mean()) if len(kl) else 0.0
        kl_weight = float(self.kl_weight)
        self.kl_weight.fill_(self.kl_controller.after(kl_weight, kl_mean, len(rollout)))

        metrics = {"kl": kl_mean, "kl_weight": kl_weight, **metrics}
        log_now(self.trainer, {f"{self.name}/{name}": number for name, number in metrics.items()})
        return [episode.trained_segments() for episode in rollout]

    def correct_rollouts(self, correction: RolloutCorrection | None) -> None:
        """Say that another program samples the rounds; None: the module's own policy does."""
        self.correction = correction

    def _corrected(
        self, correction: RolloutCorrection, episodes: Sequence[Episode], segments: Sequence[list[Segment]]
    ) -> tuple[list[Episode], Vector | None]:
        """Return the episodes with this policy's own log-probs and values, and (N,) importance weights if any.

        Raises:
            UserError: as `lmrl.training.rounds.sampled` and `lmrl.training.rounds.logprob_gaps`.
        """
        with self.trainer.precision_plugin.forward_context():  # as in the steps that learn from them
            scores = self._read_tokens(segments, self.action_scores)
        own_logprob = joined(numbers[:, 0] for numbers in scores)
        told = [sampled(episode, "action_logprobs", parts) for episode, parts in zip(episodes, segments, strict=True)]
        sampler_logprob = joined(told)
        metrics = logprob_gaps(own_logprob, sampler_logprob, correction.max_gap)

        importance = None
        if correction.importance_cap is not None:
            lengths = None
            if self.by_turn:
                lengths = [len(ids) for episode in episodes for ids in episode.action_ids]
            importance = importance_weights(own_logprob, sampler_logprob, correction.importance_cap, lengths)
            metrics["importance_mean"] = float(importance.mean()) if len(importance) else 1.0
        log_now(self.trainer, {f"rollout/{name}": number for name, number in metrics.items()})
        return [rescored(episode, numbers) for episode, numbers in zip(episodes, scores, strict=True)], importance

    def action_scores(self, batch: TokenBatch) -> Tensor:
        """(N, 1) log-probabilities of the action tokens, as the policy samples them; (N, 2) with V of their states."""
        return token_logprobs(self.logits(batch), batch.state, batch.token, self.invalid).logprob[:, None]

    def _ref_logprobs(self, segments: Sequence[list[Segment]]) -> list[Vector]:
        """(T,) per episode: the log-probability of each action token under the reference model."""

        def logprobs(batch: TokenBatch) -> Tensor:
            return token_logprobs(self.ref_logits(batch), batch.state, batch.token, self.invalid).logprob

        return self._read_tokens(segments, logprobs)

    def _read_tokens(self, segments: Sequence[list[Segment]], use: Callable[[TokenBatch], Tensor]) -> list[Vector]:
        """(T, ...) per episode: what a function makes of the action tokens of a batch."""

        def numbers(batch: TokenBatch, counts: Tensor) -> Vector:
            return use(batch).double().cpu().numpy()

        found = self.read([segment for its in segments for segment in its], numbers, bootstrap=False)
        ends = np.cumsum([sum(len(segment.col) for segment in its) for its in segments])
        return np.split(np.concatenate(found), ends)[:-1] if found else []

    def ref_logits(self, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the reference model."""
        assert isinstance(self.ref_model, PreTrainedModel)
        return logits_of(self.ref_model, self.hidden_states(trunk_of(self.ref_model), batch))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """See `LanguageModule.training_step`; a BC batch next to it adds its loss, divided by its own expectation."""
        if isinstance(batch, TokenBatch):
            return super().training_step(batch, batch_idx)
        recorded = batch["bc"]
        imitation: Tensor = bc_loss(self.logits(recorded), recorded.state, recorded.token).loss
        self.reporter.train_recorded(imitation, recorded)
        clipped = super().training_step(batch["round"], batch_idx)
        loss: Tensor = clipped + self.bc_weight * imitation * recorded.scale
        return loss

    def train(self, mode: bool = True) -> "PolicyGradient":
        """Training mode for what learns; the reference model stays in eval mode."""
        super().train(mode)
        self.ref_model.train(False)
        return self

    def policy(self, **settings: Any) -> Policy:
        """Sample from the model; `settings` as of `lmrl.policies.LMPolicy`."""
        return LMPolicy(self.model, self.tokenizer, self.context_window(), **settings)

    def reranker(self, proposals: Sequence[str], **settings: Any) -> RerankPolicy:
        """By likelihood; `settings` as of `lmrl.policies.RerankPolicy`."""
        return RerankPolicy(self.model, self.tokenizer, self.context_window(), proposals=proposals, **settings)

    def read(self, segments: Sequence[Segment], use: Any, bootstrap: bool) -> list[Any]:
        """Apply a function to batches of segments; see `lmrl.training.rounds.read_batches`."""
        size = online_datamodule(self.trainer, self.name).minibatch_size
        return read_batches(segments, use, size=size, bootstrap=bootstrap, device=self.device)

    def _invalid(self, end: int | None) -> Tensor:
        """(vocabulary,) bool: ids that are never sampled."""
        return invalid_ids(self.tokenizer, vocabulary_of(self.model), torch.device("cpu"), end)
