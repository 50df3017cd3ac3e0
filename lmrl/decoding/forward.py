"""How a model is run over a slot cache: by the operations of its kind alone, or by the model itself."""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor
from transformers import PreTrainedModel

from lmrl.decoding.cache import SlotCache
from lmrl.decoding.gpt2 import GPT2Forward
from lmrl.decoding.llama import LlamaForward
from lmrl.models.lm import uncompiled

__all__ = ["Forward", "ForwardChoice"]

Forward: TypeAlias = Callable[[SlotCache, Tensor, Tensor, Tensor], Tensor]
"""``(cache, ids, positions, mask)`` to ``(rows, new, width)`` hidden vectors; keys and values go into the cache."""

_KINDS = (GPT2Forward, LlamaForward)


class ForwardChoice:
    """Picks the fastest forward pass that fits a model.

    Small models spend half their time between operations, so plain GPT-2 and Llama models get a hand-written pass. A
    model with adapters, hooks, shards or other parts than those of its kind runs its own forward pass.

    Args:
        trunk: the model without its head, in eval mode whenever it reads. When its weights have changed, make another.
    """

    def __init__(self, trunk: PreTrainedModel) -> None:
        self._trunk = trunk
        self._kind: type[GPT2Forward | LlamaForward] | None = None
        self._forward: Forward = self._own

    def choose(self) -> Forward:
        """Return the one that fits the model as it is now: hooks may have been put on its layers."""
        fitting = next((kind for kind in _KINDS if kind.accepts(self._trunk)), None)
        if fitting is not self._kind:
            self._kind = fitting
            self._forward = self._own if fitting is None else fitting(self._trunk)
        return self._forward

    def _own(self, cache: SlotCache, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        with uncompiled(self._trunk):
            output = self._trunk(
                input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True
            )
        hidden: Tensor = output.last_hidden_state
        return hidden
