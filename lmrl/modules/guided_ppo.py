"""From offline values to online learning: PPO of a value-guided policy."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.decoding.engine import Engine
from lmrl.decoding.sampling import Guidance, Head, add_q_to_logits, min_q
from lmrl.errors import check_range
from lmrl.losses import Scores, row_scores
from lmrl.models.heads import ValueHead, frozen_copy
from lmrl.models.lm import logit_table, trunk_of, vocabulary_of
from lmrl.modules.ppo import PPO
from lmrl.modules.values import ValueModel, build_q_heads, freeze_and_copy, load_pretrained_values
from lmrl.policies import RerankPolicy, ValueGuidedPolicy
from lmrl.tokens.collate import TokenBatch
from lmrl.training.flops import StepCost, matmul_flops, total_cost, trunk_cost

__all__ = ["GuidedPPO"]


class GuidedPPO(PPO):
    """PPO from an ILQL run: trains the value-guided policy of that run, ``softmax(log pi_beta + beta * min_i Q_i)``.

    Trunk, Q heads and V head of the run learn; pi_beta stays frozen. The Qs are now parameters of the policy and no
    longer estimates of returns. KL is measured from the policy that the run ended with.
    """

    always_eval = ("model", "ref_model")

    def __init__(self, beta: float = 8.0, q_rank: int | None = None, **shared: Any) -> None:
        """Start from the policy and the values of the run.

        Args:
            beta: how strongly Q moves the policy.
            q_rank: width of the layer inside of the Q heads, as in the run; None: that of the trunk.
            **shared: arguments of `PPO`.

        Raises:
            UserError: if `pretrained` is no ILQL run with values, for a number outside of its range, and as `PPO`.
        """
        check_range("[0, inf)", beta=beta)
        check_range("[1, inf)", q_rank=q_rank)
        super().__init__(**shared)
        self.beta = beta

    def build_values(self, head_bias: float) -> None:
        """Load the value model of the run, and keep a frozen copy of it as `ref_model`."""
        self.v_head = ValueHead(int(self.model.config.hidden_size), 1, head_bias)
        self.trunk = freeze_and_copy(self.model, trunk_of(self.model), self.hparams["lora"])
        self.q_heads = build_q_heads(self.model, 2, head_bias, self.hparams["q_rank"])
        load_pretrained_values(self, self.value_state_dict(), required=True)
        # Only a shared critic trains the V head of the run further.
        self.v_head.requires_grad_(self.is_critic_shared)
        # The reference policy is pi_beta with the present values.
        self.ref_model = frozen_copy(nn.ModuleList([self.trunk, self.q_heads]))

    def add_adapters(self, lora: Mapping[str, Any] | None) -> None:
        """Put none on pi_beta, which does not learn; the trunk of the values has its own."""

    @property
    def trainable_model(self) -> PreTrainedModel:
        """The trunk under the heads."""
        return self.trunk

    @property
    def played_values(self) -> ValueModel:
        """Return the values that guide pi_beta, and that are exported."""
        return ValueModel(self.trunk, self.q_heads, self.v_head)

    def states(self, batch: TokenBatch) -> Tensor:
        """(S, width) hidden states of the trunk that learns."""
        return self.hidden_states(self.trunk, batch)

    def logits_from(self, hidden: Tensor, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the guided policy, given the hidden states of the trunk."""
        return self._guided_logits(batch, hidden, list(self.q_heads))

    def ref_logits(self, batch: TokenBatch) -> Scores:
        """(S, vocabulary) logits of the policy that this run started from."""
        trunk, q_heads = self.ref_model.children()
        return self._guided_logits(batch, self.hidden_states(trunk, batch), list(q_heads.children()))

    def _guided_logits(self, batch: TokenBatch, hidden: Tensor, q_heads: Sequence[Head]) -> Scores:
        """Add the values of (S, width) hidden states to the logits of pi_beta."""
        # No gradient flows into pi_beta.
        with torch.no_grad():
            base_hidden = self.hidden_states(trunk_of(self.model), batch)

        def compute(base_rows: Tensor, rows: Tensor) -> Tensor:
            with torch.no_grad():
                base = logit_table(self.model, base_rows)
            return add_q_to_logits(base, min_q(q_heads, rows), self.beta)

        return row_scores(compute, (base_hidden, hidden), vocabulary_of(self.model))

    def step_cost(self) -> StepCost:
        """See `PPO.step_cost`; the trunk and the Q heads learn next to the frozen model."""
        q_heads = StepCost(per_state=matmul_flops(self.q_heads, learns=True))
        return total_cost(super().step_cost(), trunk_cost(self.trunk), q_heads)

    def reading_cost(self) -> StepCost:
        """See `PolicyGradient.reading_cost`; the trunk and the Q heads are read next to the frozen model."""
        q_heads = StepCost(per_state=matmul_flops(self.q_heads, learns=False))
        return total_cost(super().reading_cost(), trunk_cost(self.trunk, learns=False), q_heads)

    def policy(self, beta: float | None = None, **settings: Any) -> ValueGuidedPolicy:
        """Sample from the guided policy; for `settings` see `lmrl.policies.ValueGuidedPolicy`."""
        return self.played_values.policy(self, self.beta if beta is None else beta, **settings)

    def reranker(
        self, proposals: Sequence[str], beta: float | None = None, slots: int | None = None, **settings: Any
    ) -> RerankPolicy:
        """Rank actions by likelihood under the guided policy; for `settings` see `lmrl.policies.RerankPolicy`.

        The values of the run have become logits, so that they say nothing without pi_beta.
        """
        guidance = Guidance(Engine(self.trunk, slots), list(self.q_heads), self.beta if beta is None else beta)
        scored: dict[str, Any] = {"score": "guided", "guidance": guidance, "slots": slots, **settings}
        return RerankPolicy(self.model, self.tokenizer, self.context_window(), proposals=proposals, **scored)

    def value_state_dict(self) -> dict[str, Tensor]:
        """Trunk (its adapters, where it has some) and heads: ``trunk.*``, ``q_heads.*``, ``v_head.*``."""
        return self.played_values.state_dict(self.hparams["lora"] is not None)
