"""Behavioural cloning."""

from collections.abc import Sequence
from typing import Any

from lmrl.batch import TokenBatch
from lmrl.losses import BCLoss, bc_loss
from lmrl.models.lm import head_of, hidden_states, trunk_of
from lmrl.modules.base import LanguageModule
from lmrl.policies import LMPolicy, RerankPolicy

__all__ = ["BC"]


class BC(LanguageModule):
    """Imitate the actions of the data: cross-entropy on action tokens only."""

    name = "bc"

    def losses(self, batch: TokenBatch) -> BCLoss:
        """The mean negative log-likelihood of the action tokens."""
        hidden = hidden_states(trunk_of(self.model), batch)
        return bc_loss(head_of(self.model)(hidden), batch.state, batch.token)

    def policy(self, **settings: Any) -> LMPolicy:
        """Sample from the model; `settings` as of `lmrl.policies.LMPolicy`."""
        return LMPolicy(self.model, self.tokenizer, self.reading(), **settings)

    def reranker(self, proposals: Sequence[str], **settings: Any) -> RerankPolicy:
        """By likelihood; `settings` as of `lmrl.policies.RerankPolicy`."""
        return RerankPolicy(self.model, self.tokenizer, self.reading(), proposals=proposals, **settings)
