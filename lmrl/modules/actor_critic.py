"""Parts that ArCHer and AWR share: a language model that learns and acts, and a critic with parameters of its own."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lmrl.errors import UserError, check_range
from lmrl.losses import gather_token_scores, token_logprobs
from lmrl.models.critic import Critic
from lmrl.models.lm import checkpoint_activations, head_of, logits_of, trunk_of
from lmrl.modules.base import LanguageModule
from lmrl.modules.values import load_pretrained_values
from lmrl.tokens.collate import TokenBatch
from lmrl.training.flops import StepCost, matmul_flops, total_cost, trunk_cost

__all__ = ["ActorCritic"]


class ActorCritic(LanguageModule):
    """The language model is the actor, in rollouts and in `generate` of an exported folder.

    Critic and actor are trained by one optimizer. Started from a run with a critic of the same kind, it resumes from
    that (offline to online).
    """

    starts_from_bc = True
    unused_in_rollouts: tuple[str, ...] = ("critic",)
    #: Number of Q heads.
    q_heads = 0

    def __init__(self, head_bias: float = 0.0, **shared: Any) -> None:
        """Build the critic next to the language model.

        Args:
            head_bias: the critic's output everywhere at the start; near the data's typical return.
            **shared: arguments of `LanguageModule`, but no `lora`.

        Raises:
            UserError: for `lora`, a number outside of its range, and as `LanguageModule`.
        """
        check_range("(-inf, inf)", head_bias=head_bias)
        super().__init__(**shared)
        self.critic = Critic(self.model, self.q_heads, head_bias)
        load_pretrained_values(self, self.value_state_dict())

    def add_adapters(self, lora: Mapping[str, Any] | None) -> None:
        """Refuse adapters.

        Raises:
            UserError: `lora` is given.
        """
        # An exported folder merges those of the language model, and the critic's would lose their base.
        if lora is not None:
            raise UserError(f"{type(self).__name__} trains all of its language model and critic: leave out lora")

    def setup(self, stage: str) -> None:
        """See `LanguageModule.setup`.

        Also enable activation checkpointing for the critic's trunk, if it is on for the model.
        """
        super().setup(stage)
        if stage == "fit" and self.hparams["activation_checkpointing"]:
            checkpoint_activations(self.critic.trunk)

    def step_cost(self) -> StepCost:
        """Both trunks, and the vocabulary head where tokens are chosen.

        Heads of one number count little and are left out. States that tokens share count once for each.
        """
        head = StepCost(per_token=matmul_flops(head_of(self.model), learns=True))
        return total_cost(trunk_cost(trunk_of(self.model)), trunk_cost(self.critic.trunk), head)

    def logprobs_among_all_tokens(self, batch: TokenBatch) -> Tensor:
        """(N,) log-probabilities of the action tokens under the language model, among all tokens."""
        hidden, state = self.action_states(batch)
        return -gather_token_scores(logits_of(self.model, hidden), state, batch.token).nll

    def logprobs_among_valid_tokens(self, batch: TokenBatch) -> Tensor:
        """(N,) log-probabilities of the action tokens among those that can be sampled."""
        hidden, state = self.action_states(batch)
        logits = logits_of(self.model, hidden)
        return token_logprobs(logits, state, batch.token, self.invalid_token_ids()).logprob

    def action_states(self, batch: TokenBatch) -> tuple[Tensor, Tensor]:
        """Hidden vectors of the language model where tokens are chosen, and (N,) the index of each token's vector."""
        # The critic needs states after actions too; the vocabulary head is spared them.
        states, place = torch.unique(batch.state, return_inverse=True)
        return self.hidden_states(trunk_of(self.model), batch)[states], place

    def value_state_dict(self) -> dict[str, Tensor]:
        """The critic: ``critic.trunk.*``, ``critic.q_heads.*``, ``critic.v_head.*``."""
        return self.critic.state_dict(prefix="critic.")
