"""Advantage-weighted regression."""

from dataclasses import replace
from typing import Any

from lmrl.datamodules.online import OnlineDataModule
from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import UserError, check_range
from lmrl.losses import AWRLoss, awr_loss
from lmrl.modules.actor_critic import ActorCritic
from lmrl.tokens.collate import TokenBatch

__all__ = ["AWR"]


class AWR(ActorCritic):
    """BC in which an action token counts ``exp(A / temperature)``; A is the return that followed it, less V before it.

    Peng et al. 2019, offline and token by token: the returns are those of the data, V is their mean.
    """

    name = "awr"

    def __init__(self, gamma: float = 0.99, temperature: float = 1.0, max_weight: float = 20.0, **shared: Any) -> None:
        """Build V beside the language model.

        Args:
            gamma: discount per action token.
            temperature: how much better an action must be to count e times as much; large ones imitate.
            max_weight: the most that a token counts.
            **shared: arguments of `ActorCritic`.

        Raises:
            UserError: for a number outside of its range, and as `ActorCritic`.
        """
        check_range("[0, 1]", gamma=gamma)
        check_range("(0, inf)", temperature=temperature, max_weight=max_weight)
        super().__init__(**shared)
        self.gamma = gamma
        self.loss_arguments = {"temperature": temperature, "max_weight": max_weight}

    def setup(self, stage: str) -> None:
        """See `LanguageModule.setup`.

        Raises:
            UserError: if the datamodule plays rounds, which come without returns.
        """
        if isinstance(getattr(self.trainer, "datamodule", None), OnlineDataModule):
            raise UserError("AWR learns from recorded episodes: use lmrl.datamodules.OfflineDataModule")
        super().setup(stage)

    def batch_spec(self) -> BatchSpec:
        """With returns."""
        return replace(super().batch_spec(), returns_gamma=self.gamma)

    def losses(self, batch: TokenBatch) -> AWRLoss:
        """Weighted negative log-likelihood, and squared error of V."""
        hidden = self.hidden_states(self.critic.trunk, batch)
        value = self.critic.v(hidden)[batch.state]
        return awr_loss(-self.token_logprobs(batch), value, batch.return_to_go, **self.loss_arguments)
