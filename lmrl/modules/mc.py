"""Monte Carlo returns."""

from dataclasses import replace
from typing import Any

from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import check_range
from lmrl.losses import MCLoss, mc_loss
from lmrl.modules.values import ValueModule, load_pretrained_values
from lmrl.tokens.collate import TokenBatch

__all__ = ["MC"]


class MC(ValueModule):
    """Regress Q of every action token to the discounted return that followed it; act on ``log pi + beta * Q``.

    Abdulhai et al. 2025. Without V, bootstrapping and target networks, Q is the value of the data's own policy.
    """

    name = "mc"

    def __init__(self, gamma: float = 0.99, cql_weight: float = 0.01, **shared: Any) -> None:
        """Build the value model next to the frozen policy.

        Args:
            gamma: discount per action token.
            cql_weight: weight of the cross-entropy on Q.
            **shared: arguments of `ValueModule`.

        Raises:
            UserError: for a number outside of its range, and as `ValueModule`.
        """
        check_range("[0, 1]", gamma=gamma)
        check_range("[0, inf)", cql_weight=cql_weight)
        super().__init__(**shared)
        self.gamma = gamma
        self.cql_weight = cql_weight
        load_pretrained_values(self, self.value_state_dict())

    def batch_spec(self) -> BatchSpec:
        """Declare batches with returns."""
        return replace(super().batch_spec(), returns_gamma=self.gamma)

    def losses(self, batch: TokenBatch) -> MCLoss:
        """Squared error of Q and its cross-entropy."""
        hidden = self.hidden_states(self.trunk, batch)
        (q,) = self.gather_q(hidden, batch)
        return mc_loss(q, batch.return_to_go, cql_weight=self.cql_weight)
