"""Behavioural cloning."""

from dataclasses import replace
from typing import Any

from torch import Tensor

from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import check_range
from lmrl.losses import BCLoss, bc_loss
from lmrl.models.lm import logits_of, trunk_of
from lmrl.modules.base import LanguageModule
from lmrl.tokens.collate import TokenBatch
from lmrl.training.reporting import PerplexityReporter

__all__ = ["BC"]


class BC(LanguageModule):
    """Imitate the actions of the data: cross-entropy on action tokens.

    Observation tokens can be predicted as well (`observation_loss_weight`), which teaches a model from scratch to
    understand what it reads: they often follow from the history, so they are a less noisy training signal than the
    actions. A pretrained model hardly needs it.
    """

    name = "bc"

    def __init__(self, observation_loss_weight: float = 0.0, **shared: Any) -> None:
        """Build the language model.

        Args:
            observation_loss_weight: weight of the loss on observation tokens; 0, as published, leaves them out.
            **shared: arguments of `LanguageModule`.

        Raises:
            UserError: for a negative weight, and as `LanguageModule`.
        """
        check_range("[0, inf)", observation_loss_weight=observation_loss_weight)
        super().__init__(**shared)
        self.observation_loss_weight = observation_loss_weight
        self.reporter = PerplexityReporter(self.name)

    def batch_spec(self) -> BatchSpec:
        """Declare batches with observation tokens, if they count."""
        return replace(super().batch_spec(), observations=self.observation_loss_weight > 0)

    def losses(self, batch: TokenBatch) -> BCLoss:
        """The mean negative log-likelihood of the action tokens, and of the observation tokens."""
        logits = logits_of(self.model, self.hidden_states(trunk_of(self.model), batch))
        weight = self.observation_loss_weight
        return bc_loss(logits, batch.state, batch.token, batch.observation_state, batch.observation_token, weight)

    def objective(self, terms: BCLoss, batch: TokenBatch) -> Tensor:
        """Action tokens and observation tokens, each divided by their expected number in a batch."""
        # A subclass may have terms of its own.
        if not isinstance(terms, BCLoss) or terms.nll is None or terms.read_nll is None:
            return super().objective(terms, batch)
        # The two numbers vary independently from batch to batch, so each has its own scale.
        return terms.nll * batch.scale + self.observation_loss_weight * terms.read_nll * batch.observation_scale
