"""Q-SFT: Q-learning by the cross-entropy of a second language model (Hong et al. 2024, arXiv 2411.05193)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from lmrl.datamodules.offline import OfflineDataModule
from lmrl.datamodules.online import OnlineDataModule
from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import UserError, check_range
from lmrl.losses import (
    QSFTLoss,
    Scores,
    best_ratio,
    gather_token_scores,
    mask_scores,
    qsft_loss,
    qsft_weight,
    token_nll,
)
from lmrl.models.heads import frozen_copy
from lmrl.models.lm import logits_of, trunk_of
from lmrl.modules.base import LanguageModule
from lmrl.modules.ratios import RatioModel, checked_return_range
from lmrl.modules.values import freeze_and_copy, load_pretrained_values, update_target
from lmrl.policies import RatioGuidedPolicy, RerankPolicy
from lmrl.tokens.collate import TokenBatch
from lmrl.training.flops import StepCost, lm_cost, total_cost
from lmrl.training.optimizer import check_target_precision

__all__ = ["QSFT"]


class QSFT(LanguageModule):
    """Values without value heads: the Q of a token is its probability under a copy p of the BC model, over pi_beta's.

    Returns are scaled to [0, 1], ``Q = low + (high - low) p / pi_beta``. The ratio is a value only where pi_beta is the
    distribution of the actions that are learned from: the data must be those of the BC run.
    """

    name = "qsft"
    starts_from_bc = True
    unused_in_rollouts = ("target_q_model",)
    always_eval = ("model", "target_q_model")

    def __init__(
        self,
        gamma: float = 0.99,
        beta: float = 16.0,
        polyak: float = 0.05,
        support: float = 0.01,
        return_range: list[float] | None = None,
        bc_weight: float = 0.0,
        **shared: Any,
    ) -> None:
        """Build p, its target copy, and the frozen policy.

        Args:
            gamma: discount per action token.
            beta: how strongly the values, which lie between 0 and 1, move the policy when it acts.
            polyak: rate at which the target copy moves towards p, after each optimizer step.
            support: the best token is looked for among those to which pi_beta gives at least this probability (and its
                most probable one); the ratio of the others is noise, and their value 0.
            return_range: lowest and highest value; None: those of the environment of the data.
            bc_weight: weight of the BC loss by which pi_beta keeps learning from the same batches. 0 keeps it frozen,
                as published. Q is p / pi_beta, so any misfit of a frozen pi_beta to the data appears as a spurious
                value.
            **shared: arguments of `LanguageModule`.

        Raises:
            UserError: for a number outside of its range, a weight of BC with adapters, another `return_range` than that
                of the Q-SFT run from which it goes on, and as `LanguageModule`.
        """
        check_range("[0, 1]", gamma=gamma, support=support)
        check_range("[0, inf)", beta=beta, bc_weight=bc_weight)
        check_range("(0, 1]", polyak=polyak)
        between = checked_return_range(return_range)
        super().__init__(**shared)
        if bc_weight and self.hparams["lora"] is not None:
            raise UserError("bc_weight must be 0 with lora: the adapters are those of p alone")
        self.gamma = gamma
        self.beta = beta
        self.polyak = polyak
        self.support = support
        self.bc_weight = bc_weight
        self.return_range: Tensor
        self.register_buffer("return_range", between.clone())
        self.q_model = freeze_and_copy(self.model, self.model, self.hparams["lora"])
        self.model.requires_grad_(bc_weight > 0)  # pi_beta keeps learning if its BC loss counts
        load_pretrained_values(self, self.value_state_dict())
        if return_range is not None and self.return_range.tolist() != between.tolist():
            raise UserError(
                f"return_range is {return_range}, and {self.hparams['pretrained']!r} has learned with "
                f"{self.return_range.tolist()}: leave it out"
            )
        self.target_q_model = frozen_copy(self.q_model)

    def add_adapters(self, lora: Mapping[str, Any] | None) -> None:
        """Put none on the policy, which does not learn; p has its own."""

    @property
    def trainable_model(self) -> PreTrainedModel:
        """The language model p."""
        return self.q_model

    @property
    def played_values(self) -> RatioModel:
        """Return the values that guide pi_beta, and that are exported."""
        return RatioModel(self.q_model, self.return_range, self.support)

    def setup(self, stage: str) -> None:
        """See `LanguageModule.setup`; the range of returns comes from the environment, if it was not given.

        Raises:
            UserError: the range is unknown, the datamodule plays rounds, or the target copy would be in half precision.
        """
        data = getattr(self.trainer, "datamodule", None)
        if isinstance(data, OnlineDataModule):
            raise UserError("QSFT learns from the data of its BC run alone: use an offline datamodule")
        super().setup(stage)
        if self.hparams["lora"] is None:
            check_target_precision(self.trainer, "QSFT", can_use_adapters=True)
        if self.return_range.isnan().any():
            if not isinstance(data, OfflineDataModule):
                raise UserError("return_range must be given where no datamodule names a task")
            self.return_range.copy_(checked_return_range(data.return_range()))

    def batch_spec(self) -> BatchSpec:
        """Declare batches with the states that follow."""
        return replace(super().batch_spec(), bootstrap=True)

    def losses(self, batch: TokenBatch) -> QSFTLoss:
        """Cross-entropy of p: the target weight on the token taken, the rest of 1 spread over the others."""
        assert batch.next is not None
        invalid = self.invalid_token_ids()
        low, high = self.return_range
        # (S, vocabulary) logits of pi_beta, of the target copy of p, and of p.
        base = self._logits(self.model, batch)
        target = self._logits(self.target_q_model, batch)
        scores = self._logits(self.q_model, batch)
        base = mask_scores(base, invalid)
        target = mask_scores(target, invalid)
        # max_a' Q'(s', a') of the target copy, where the policy acts next.
        next_ratio = best_ratio(target, base, self.support)[batch.next]
        base_nll = gather_token_scores(base, batch.state, batch.token).nll
        weight = qsft_weight(batch.reward, next_ratio, batch.terminated, gamma=self.gamma, low=low, high=high)
        nll = token_nll(scores, batch.state, batch.token, invalid)
        return qsft_loss(nll, base_nll, weight, low=low, high=high, bc_weight=self.bc_weight)

    def _logits(self, model: PreTrainedModel, batch: TokenBatch) -> Scores:
        return logits_of(model, self.hidden_states(trunk_of(model), batch))

    def step_cost(self) -> StepCost:
        """Three language models: pi_beta, the target copy, and p."""
        return total_cost(lm_cost(self.model), lm_cost(self.target_q_model), lm_cost(self.q_model))

    def update_target_networks(self) -> None:
        """Move the target copy of p by `polyak`."""
        update_target(self.target_q_model, self.q_model, self.polyak)

    def policy(self, beta: float | None = None, **settings: Any) -> RatioGuidedPolicy:
        """Sample from ``pi_beta * exp(beta * p / pi_beta)``; for `settings` see `lmrl.policies.RatioGuidedPolicy`."""
        return self.played_values.policy(self, beta=self.beta if beta is None else beta, **settings)

    def reranker(self, proposals: Sequence[str], beta: float | None = None, **settings: Any) -> RerankPolicy:
        """Rank actions by likelihood under the guided policy; for `settings` see `lmrl.policies.RerankPolicy`."""
        return self.played_values.reranker(self, proposals, self.beta if beta is None else beta, **settings)

    def value_state_dict(self) -> dict[str, Tensor]:
        """Weights of p (its adapters, where it has some), ``q_model.*``, and ``return_range``."""
        return self.played_values.state_dict(self.hparams["lora"] is not None)
