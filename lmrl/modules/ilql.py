"""Implicit language Q-learning."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import check_range
from lmrl.losses import ILQLLoss, ilql_loss
from lmrl.models.heads import ValueHead, frozen_copy
from lmrl.modules.values import ValueModel, ValueModule, load_pretrained_values, update_target
from lmrl.tokens.collate import TokenBatch
from lmrl.training.flops import StepCost, matmul_flops, total_cost, trunk_cost
from lmrl.training.optimizer import check_target_precision

__all__ = ["ILQL"]


class ILQL(ValueModule):
    """Value learning from offline data: two Qs and a V per action token, V an upper expectile of the lower target Q.

    Snell et al. 2022, in the form of Abdulhai et al. 2025 with its episode ends corrected: a terminated episode has
    no value beyond its end, a truncated one is bootstrapped from the state after its last observation.
    """

    name = "ilql"
    heads = 2
    unused_in_rollouts: tuple[str, ...] = ("target_trunk", "target_q_heads")
    always_eval = ("model", "target_trunk", "target_q_heads", "target_v_head")

    def __init__(
        self,
        gamma: float = 0.99,
        expectile: float = 0.7,
        cql_weight: float = 0.01,
        polyak: float = 0.005,
        play_target: bool = False,
        **shared: Any,
    ) -> None:
        """Build the value model, its target networks, and the frozen policy.

        Args:
            gamma: discount per action token.
            expectile: in [0.5, 1): how near V comes to the best Q that the data supports.
            cql_weight: weight of the cross-entropy on both Qs.
            polyak: rate at which the target networks move towards what learns, after each optimizer step.
            play_target: act with the target networks, V's too, and export them, in place of the online ones.
            **shared: arguments of `ValueModule`.

        Raises:
            UserError: for a number outside of its range, and as `ValueModule`.
        """
        check_range("[0, 1]", gamma=gamma)
        check_range("[0.5, 1)", expectile=expectile)
        check_range("[0, inf)", cql_weight=cql_weight)
        check_range("(0, 1]", polyak=polyak)
        super().__init__(**shared)
        self.loss_arguments = {"gamma": gamma, "expectile": expectile, "cql_weight": cql_weight}
        self.polyak = polyak
        self.v_head = ValueHead(int(self.model.config.hidden_size), 1, self.hparams["head_bias"])
        load_pretrained_values(self, self.value_model.state_dict(self.hparams["lora"] is not None))
        self.target_trunk = frozen_copy(self.trunk)
        self.target_q_heads = frozen_copy(self.q_heads)
        # The loss needs no target of V: Q learns from the online V.
        self.target_v_head: nn.Module | None = frozen_copy(self.v_head) if play_target else None
        if play_target:
            self.unused_in_rollouts = ("trunk", "q_heads", "v_head")

    @property
    def played_values(self) -> ValueModel:
        """The target networks with `play_target`."""
        if self.target_v_head is None:
            return self.value_model
        return ValueModel(self.target_trunk, self.target_q_heads, self.target_v_head)

    def setup(self, stage: str) -> None:
        """See `LanguageModule.setup`.

        Raises:
            UserError: if the target networks were to be kept in half precision, in which they do not move.
        """
        super().setup(stage)
        if self.hparams["lora"] is None:
            check_target_precision(self.trainer, "ILQL", can_use_adapters=True)

    def batch_spec(self) -> BatchSpec:
        """Declare batches with the states that follow."""
        return replace(super().batch_spec(), bootstrap=True)

    def losses(self, batch: TokenBatch) -> ILQLLoss:
        """TD loss of both Qs, expectile loss of V, cross-entropy of both Qs."""
        assert self.v_head is not None and batch.next is not None
        hidden = self.hidden_states(self.trunk, batch)
        with torch.no_grad():
            target_hidden = self.hidden_states(self.target_trunk, batch)
            heads = cast(Iterable[ValueHead], self.target_q_heads)
            target_q = [head.gather_scores(target_hidden, batch.state, batch.token) for head in heads]
        value = self.v_head(hidden).squeeze(-1)  # (S,) V of every state of the batch
        return ilql_loss(
            self.gather_q(hidden, batch),
            target_q,
            value[batch.state],
            value[batch.next],
            batch.reward,
            batch.terminated,
            **self.loss_arguments,
        )

    def step_cost(self) -> StepCost:
        """See `ValueModule.step_cost`; the target networks run forward."""
        # Each action token needs one row of their outer layers.
        inner = 0
        row = 0
        for head in cast(Iterable[ValueHead], self.target_q_heads):
            inner += matmul_flops(head.inner, learns=False)
            row += 2 * head.outer.in_features
        target_heads = StepCost(per_state=inner, per_token=row)
        return total_cost(super().step_cost(), trunk_cost(self.target_trunk), target_heads)

    def update_target_networks(self) -> None:
        """Move the target networks by `polyak`."""
        update_target(self.target_trunk, self.trunk, self.polyak)
        update_target(self.target_q_heads, self.q_heads, self.polyak)
        if self.target_v_head is not None and self.v_head is not None:
            update_target(self.target_v_head, self.v_head, self.polyak)

    def played_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the weights that play: with `play_target` those of the target networks stand for the values."""
        played = dict(weights)
        if self.target_v_head is not None:
            for name, tensor in weights.items():
                if name.startswith("target_"):
                    played[name.removeprefix("target_")] = tensor
        return played
