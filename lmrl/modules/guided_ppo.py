"""From offline values to online learning: PPO of a value-guided policy."""

from typing import Any

import torch
from torch import Tensor, nn

from lmrl.decoding.sampling import combine, lowest
from lmrl.models.heads import ValueHead, frozen_copy
from lmrl.models.lm import head_of, trunk_of
from lmrl.modules.ppo import PPO
from lmrl.modules.values import ValueModule
from lmrl.tokens.collate import TokenBatch

__all__ = ["GuidedPPO"]


class GuidedPPO(ValueModule, PPO):
    """PPO from an ILQL run: ``softmax(log pi_beta + beta * min_i Q_i)``, as that run plays, goes on learning.

    Trunk, Q heads and V head of the run are what learns; pi_beta stays as it is. The Qs are now part of the policy and
    no estimates any more. KL is measured from the policy that the run ended with.
    """

    name = "ppo"
    heads = 2
    needs_values = True

    def __init__(self, **shared: Any) -> None:
        """Take over the policy and the values of the run.

        Args:
            **shared: arguments of `ValueModule` and `PPO`.

        Raises:
            UserError: if `pretrained` is no run with values of ILQL, and as `PPO`.
        """
        super().__init__(**shared)
        self.v_head: ValueHead = ValueHead(int(self.model.config.hidden_size), 1, self.hparams["head_bias"])
        self.take_over_values()
        self.start: nn.Module = frozen_copy(nn.ModuleList([self.trunk, self.q_heads]))

    def train(self, mode: bool = True) -> "GuidedPPO":
        """Training mode for what learns; pi_beta and the start policy stay in eval mode."""
        super().train(mode)
        return self

    def scores(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """(S, vocabulary) logits of the guided policy, and (S,) V."""
        hidden = self.hidden_states(self.trunk, batch)
        logits = combine(self._base_logits(batch), lowest(list(self.q_heads), hidden), self.beta)
        return logits, self.v_head(hidden).squeeze(-1)

    def start_logits(self, batch: TokenBatch) -> Tensor:
        """(S, vocabulary) logits of the policy that the run began with."""
        trunk, q_heads = self.start.children()
        return combine(
            self._base_logits(batch), lowest(list(q_heads.children()), self.hidden_states(trunk, batch)), self.beta
        )

    @torch.no_grad()
    def _base_logits(self, batch: TokenBatch) -> Tensor:
        logits: Tensor = head_of(self.model)(self.hidden_states(trunk_of(self.model), batch))
        return logits
