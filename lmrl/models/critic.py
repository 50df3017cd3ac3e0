"""The critic of a language model: a trunk with its own parameters, and heads that give one number per state."""

from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.models.heads import ValueHead, copy_sharing_frozen
from lmrl.models.lm import trunk_of

__all__ = ["Critic"]


class Critic(nn.Module):
    """Shares no parameter with the language model; its trunk begins as a copy of the model's.

    Args:
        model: all of whose parameters learn.
        q_heads: number of Q heads.
        bias: the value of all states at the start.
    """

    def __init__(self, model: PreTrainedModel, q_heads: int, bias: float) -> None:
        super().__init__()
        width = int(model.config.hidden_size)
        # Frozen parts of the model are shared, so that a copy costs memory only for what learns.
        self.trunk: PreTrainedModel = copy_sharing_frozen(trunk_of(model))
        self.q_heads = nn.ModuleList([ValueHead(width, 1, bias) for _ in range(q_heads)])
        self.v_head = ValueHead(width, 1, bias)

    def v(self, hidden: Tensor) -> Tensor:
        """(n,) V of (n, width) hidden vectors of the trunk."""
        value: Tensor = self.v_head(hidden).squeeze(-1)
        return value

    def q(self, hidden: Tensor) -> list[Tensor]:
        """(n,) of each Q head: the value of the action whose last token has been read there."""
        return [head(hidden).squeeze(-1) for head in self.q_heads]
