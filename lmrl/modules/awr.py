"""Advantage-weighted regression."""

from dataclasses import replace
from typing import Any

from lmrl.datamodules.online import OnlineDataModule
from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import UserError, check_range
from lmrl.losses import AWRLoss, awr_loss
from lmrl.modules.actor_critic import ActorCritic
from lmrl.tokens.collate import TokenBatch
from lmrl.training.reporting import WeightReporter

__all__ = ["AWR"]


class AWR(ActorCritic):
    """BC in which an action token counts ``exp(A / temperature)``; A is the return that followed it, less V before it.

    Peng et al. 2019, offline and per token: the returns are those of the data, and V learns their mean. With
    `bootstrap`, V of the state in which the policy acts next replaces the rest of the return. With an expectile above
    0.5, V is the value of the better actions. Both together are the policy extraction of implicit Q-learning (Kostrikov
    et al. 2022, arXiv 2110.06169). It needs no Q here, because games nearly always answer an action in the same way.
    """

    name = "awr"

    def __init__(
        self,
        gamma: float = 0.99,
        temperature: float = 1.0,
        max_weight: float = 20.0,
        bootstrap: bool = False,
        expectile: float = 0.5,
        **shared: Any,
    ) -> None:
        """Build V next to the language model.

        Args:
            gamma: discount per action token.
            temperature: how much better an action must be to count e times as much; large ones imitate.
            max_weight: the most that a token counts.
            bootstrap: use ``G = r + gamma V(next)`` in place of the return: free of the luck of later actions, and with
                a value beyond the end of truncated episodes. Where the game answers by chance, V takes good luck for
                good play if the expectile is above 0.5.
            expectile: the expectile of G that V learns; 0.5 is the mean. Above, actions are compared with better ones
                than the data's, and with `bootstrap` episodes are stitched together.
            **shared: arguments of `ActorCritic`.

        Raises:
            UserError: for a number outside of its range, and as `ActorCritic`.
        """
        check_range("[0, 1]", gamma=gamma)
        check_range("(0, inf)", temperature=temperature, max_weight=max_weight)
        check_range("[0.5, 1)", expectile=expectile)
        super().__init__(**shared)
        self.gamma = gamma
        self.bootstrap = bootstrap
        self.reporter = WeightReporter(self.name, max_weight)
        self.loss_arguments = {"temperature": temperature, "max_weight": max_weight, "expectile": expectile}

    def setup(self, stage: str) -> None:
        """See `LanguageModule.setup`.

        Raises:
            UserError: if the datamodule plays rounds, which come without returns.
        """
        if isinstance(getattr(self.trainer, "datamodule", None), OnlineDataModule):
            raise UserError("AWR learns from recorded episodes: use lmrl.datamodules.OfflineDataModule")
        super().setup(stage)

    def batch_spec(self) -> BatchSpec:
        """Declare batches with returns, or with the states in which the policy acts next."""
        spec = super().batch_spec()
        return replace(spec, bootstrap=True) if self.bootstrap else replace(spec, returns_gamma=self.gamma)

    def losses(self, batch: TokenBatch) -> AWRLoss:
        """Weighted negative log-likelihood, and squared error of V."""
        values = self.critic.v(self.hidden_states(self.critic.trunk, batch))
        value = values[batch.state]
        if self.bootstrap:
            assert batch.next is not None
            # TD(0). V is not trained through its target, since `awr_loss` detaches it.
            target = batch.reward + self.gamma * values[batch.next].masked_fill(batch.terminated, 0.0)
        else:
            target = batch.return_to_go
        return awr_loss(-self.logprobs_among_all_tokens(batch), value, target, **self.loss_arguments)
