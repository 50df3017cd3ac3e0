"""Implicit language Q-learning."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from lightning.pytorch.plugins.precision import HalfPrecision
from torch import Tensor, nn

from lmrl.errors import UserError, check_range
from lmrl.losses import ILQLLoss, ilql_loss
from lmrl.models.heads import ValueHead, follow, frozen_copy
from lmrl.modules.values import Played, ValueModule
from lmrl.tokens.collate import TokenBatch

__all__ = ["ILQL"]


class ILQL(ValueModule):
    """Offline value learning: two Qs and a V per action token, V an upper expectile of the slow copies' lower Q.

    Snell et al. 2023, in the form of Abdulhai et al. 2025 with its episode ends corrected: a terminated episode has
    no value beyond its end, a truncated one is bootstrapped from the state after its last observation.
    """

    name = "ilql"
    heads = 2
    in_steps = False
    silent: tuple[str, ...] = ("slow_trunk", "slow_q_heads")

    def __init__(
        self,
        gamma: float = 0.99,
        expectile: float = 0.7,
        cql_weight: float = 0.01,
        polyak: float = 0.005,
        play_target: bool = False,
        **shared: Any,
    ) -> None:
        """Build the value model, its slow copy, and the frozen policy.

        Args:
            gamma: discount per action token.
            expectile: in [0.5, 1): how near V comes to the best Q that the data supports.
            cql_weight: weight of the cross-entropy on both Qs.
            polyak: share of the way that the slow copies move after each optimizer step.
            play_target: play and export the slow copies of trunk and heads, V's too, in place of what learns.
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
        self.take_over_values()
        self.slow_trunk, self.slow_q_heads = frozen_copy(self.trunk), frozen_copy(self.q_heads)
        self.slow_v_head: nn.Module | None = frozen_copy(self.v_head) if play_target else None
        if play_target:
            self.silent = ("trunk", "q_heads", "v_head")

    @property
    def played(self) -> Played:
        """The slow copies with `play_target`."""
        if self.slow_v_head is None:
            return super().played
        return Played(self.slow_trunk, self.slow_q_heads, self.slow_v_head)

    def setup(self, stage: str) -> None:
        """Ask the datamodule for the states that follow.

        Raises:
            UserError: if the slow copies were to be kept in half precision, in which they do not move.
        """
        super().setup(stage)
        if isinstance(self.trainer.precision_plugin, HalfPrecision) and self.hparams["lora"] is None:
            raise UserError(
                f"precision {self.trainer.precision} rounds the steps of ILQL's slow copies to nothing; use "
                "bf16-mixed, or train adapters (model.init_args.lora), which stay float32"
            )
        self.ask(bootstrap=True)

    def losses(self, batch: TokenBatch) -> ILQLLoss:
        """TD loss of both Qs, expectile loss of V, cross-entropy of both Qs."""
        assert self.v_head is not None and batch.next is not None
        hidden = self.hidden_states(self.trunk, batch)
        with torch.no_grad():
            slow_hidden = self.hidden_states(self.slow_trunk, batch)
            heads = cast(Iterable[ValueHead], self.slow_q_heads)
            slow_q = [head.score_taken(slow_hidden, batch.state, batch.token) for head in heads]
        value = self.v_head(hidden).squeeze(-1)
        return ilql_loss(
            self.q_taken(hidden, batch),
            slow_q,
            value[batch.state],
            value[batch.next],
            batch.reward,
            batch.terminated,
            **self.loss_arguments,
        )

    def train(self, mode: bool = True) -> "ILQL":
        """Training mode for what learns; the slow copies stay in eval mode."""
        super().train(mode)
        for slow in (self.slow_trunk, self.slow_q_heads, self.slow_v_head):
            if slow is not None:
                slow.train(False)
        return self

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Step, then move the slow copies: once per real step, also under gradient accumulation."""
        super().optimizer_step(*args, **kwargs)
        self.follow()

    def follow(self) -> None:
        """Move the slow copies by `polyak` of the way; what does not learn is the same in both."""
        slow = [*self.slow_trunk.parameters(), *self.slow_q_heads.parameters()]
        fast = [*self.trunk.parameters(), *self.q_heads.parameters()]
        if self.slow_v_head is not None and self.v_head is not None:
            slow, fast = [*slow, *self.slow_v_head.parameters()], [*fast, *self.v_head.parameters()]
        pairs = [(ours, theirs) for ours, theirs in zip(slow, fast, strict=True) if theirs.requires_grad]
        follow([ours for ours, _ in pairs], [theirs for _, theirs in pairs], self.polyak)

    def played_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """With `play_target` the values are the slow copies."""
        if self.slow_v_head is None:
            return weights
        slow = {name.removeprefix("slow_"): t for name, t in weights.items() if name.startswith("slow_")}
        return {**weights, **slow}
