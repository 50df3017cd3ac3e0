"""The values of Q-SFT: a language model whose probabilities, over those of the frozen policy, are values."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lmrl.decoding.engine import Engine
from lmrl.decoding.sampling import RatioGuidance
from lmrl.errors import UserError, check_range
from lmrl.models.lm import logit_table
from lmrl.models.lora import adapter_weights
from lmrl.modules.base import LanguageModule
from lmrl.policies import RatioGuidedPolicy, RerankPolicy

__all__ = ["RatioModel", "checked_return_range"]


class RatioModel(NamedTuple):
    """A language model p, and how its ratios to the policy are read."""

    trunk: PreTrainedModel
    """p, its vocabulary head included."""
    return_range: Tensor
    """(2,) the returns that 0 and 1 stand for."""
    support: float
    """Tokens to which the policy gives less have the value 0."""

    def policy(self, module: LanguageModule, **settings: Any) -> RatioGuidedPolicy:
        """Sample from ``pi_beta * exp(beta * p / pi_beta)``; pi_beta is the language model of the module."""
        low, high = self.return_range.tolist()
        played = {"value_model": self.trunk, "support": self.support, "return_range": (low, high), **settings}
        return RatioGuidedPolicy(module.model, module.tokenizer, module.context_window(), **played)

    def reranker(
        self, module: LanguageModule, proposals: Sequence[str], beta: float, slots: int | None = None, **settings: Any
    ) -> RerankPolicy:
        """Score actions by their likelihood under the guided policy."""
        window = module.context_window()
        engine = Engine(self.trunk, slots)
        invalid = module.invalid_token_ids()
        scores = partial(logit_table, self.trunk)
        guidance = RatioGuidance(engine, (scores,), beta, support=self.support, invalid=invalid)
        scored: dict[str, Any] = {"score": "guided", "guidance": guidance, "slots": slots, **settings}
        return RerankPolicy(module.model, module.tokenizer, window, proposals=proposals, **scored)

    def state_dict(self, lora: bool) -> dict[str, Tensor]:
        """``q_model.*`` (with `lora` its adapters alone; tied weights once) and ``return_range``."""
        # Tied weights are parameters with several names. Keep the first name.
        names = dict(self.trunk.named_parameters(remove_duplicate=False)).keys()
        tied = names - dict(self.trunk.named_parameters()).keys()
        weights = adapter_weights(self.trunk) if lora else self.trunk.state_dict()
        named = {f"q_model.{name}": tensor for name, tensor in weights.items() if name not in tied}
        return {**named, "return_range": self.return_range}


def checked_return_range(given: Sequence[float] | None) -> Tensor:
    """(2,) float32 of a range of returns; not a number where there is none yet.

    Raises:
        UserError: it is not two finite numbers, the lower one first.
    """
    if given is None:
        return torch.full((2,), torch.nan)
    if len(given) != 2 or not given[0] < given[1]:
        raise UserError(f"return_range must be two numbers, the lower one first, got {given!r}")
    low, high = given
    check_range("(-inf, inf)", **{"return_range[0]": low, "return_range[1]": high})
    return torch.tensor([float(low), float(high)])
