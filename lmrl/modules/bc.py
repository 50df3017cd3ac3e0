"""Behavioural cloning."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lmrl.errors import check_range
from lmrl.losses import BCLoss, bc_loss
from lmrl.models.lm import logits_of, trunk_of
from lmrl.modules.base import LanguageModule
from lmrl.policies import LMPolicy, RerankPolicy
from lmrl.tokens.collate import TokenBatch

__all__ = ["BC"]


class BC(LanguageModule):
    """Imitate the actions of the data: cross-entropy on action tokens.

    Tokens of the environment can be predicted as well (`read_weight`), which teaches a model from scratch to
    understand what it reads: an answer that follows from earlier ones is a clearer lesson than an action that is the
    data's whim. A pretrained model hardly needs it.
    """

    name = "bc"

    def __init__(self, read_weight: float = 0.0, **shared: Any) -> None:
        """Build the language model.

        Args:
            read_weight: weight of the loss on tokens that are read and not said; 0, as published, leaves them out.
            **shared: arguments of `LanguageModule`.

        Raises:
            UserError: for a negative weight, and as `LanguageModule`.
        """
        check_range("[0, inf)", read_weight=read_weight)
        super().__init__(**shared)
        self.read_weight = read_weight

    def setup(self, stage: str) -> None:
        """Ask the datamodule for what is read, if it counts."""
        super().setup(stage)
        self.ask(read=self.read_weight > 0)

    def losses(self, batch: TokenBatch) -> BCLoss:
        """The mean negative log-likelihood of the action tokens, and of what is read."""
        logits = logits_of(self.model, self.hidden_states(trunk_of(self.model), batch))
        read = (batch.read_state, batch.read_token, self.read_weight)
        return bc_loss(logits, batch.state, batch.token, *read)

    def objective(self, terms: BCLoss, batch: TokenBatch) -> Tensor:
        """Action tokens and observation tokens, each divided by the number that is expected of them."""
        if not self.read_weight or terms.nll is None or terms.read_nll is None:
            return super().objective(terms, batch)
        return terms.nll * batch.scale + self.read_weight * terms.read_nll * batch.read_scale

    def policy(self, **settings: Any) -> LMPolicy:
        """Sample from the model; `settings` as of `lmrl.policies.LMPolicy`."""
        return LMPolicy(self.model, self.tokenizer, self.reading(), **settings)

    def reranker(self, proposals: Sequence[str], **settings: Any) -> RerankPolicy:
        """By likelihood; `settings` as of `lmrl.policies.RerankPolicy`."""
        return RerankPolicy(self.model, self.tokenizer, self.reading(), proposals=proposals, **settings)
