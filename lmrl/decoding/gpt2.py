"""The forward pass of a plain GPT-2, operation by operation."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention, GPT2Block, GPT2Model
from transformers.pytorch_utils import Conv1D

from lmrl.decoding.cache import SlotCache, attend

__all__ = ["GPT2Forward"]

_PARTS = (GPT2Model, GPT2Block, GPT2Attention, GPT2MLP, Conv1D, nn.Embedding, nn.LayerNorm, nn.Dropout, nn.ModuleList)


class _Norm(NamedTuple):
    shape: tuple[int, ...]
    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def of(cls, norm: nn.LayerNorm) -> "_Norm":
        return cls(tuple(norm.normalized_shape), norm.weight, norm.bias, norm.eps)


class _Layer(NamedTuple):
    """Weights of one block; a lookup in a module costs as much as a small matrix product."""

    before_attention: _Norm
    qkv: tuple[Tensor, Tensor]
    attention_out: tuple[Tensor, Tensor]
    before_mlp: _Norm
    up: tuple[Tensor, Tensor]
    act: Callable[[Tensor], Tensor]
    down: tuple[Tensor, Tensor]


def _layers(trunk: Any) -> Iterator[_Layer]:
    for block in trunk.h:
        attention = block.attn
        mlp = block.mlp
        yield _Layer(
            before_attention=_Norm.of(block.ln_1),
            qkv=(attention.c_attn.bias, attention.c_attn.weight),
            attention_out=(attention.c_proj.bias, attention.c_proj.weight),
            before_mlp=_Norm.of(block.ln_2),
            up=(mlp.c_fc.bias, mlp.c_fc.weight),
            act=mlp.act,
            down=(mlp.c_proj.bias, mlp.c_proj.weight),
        )


class GPT2Forward:
    """Gives the numbers of the model, bit by bit on a CPU, in less time: small models and batches gain most.

    Args:
        trunk: a model for which `accepts` is true; its weights may change in place.
    """

    def __init__(self, trunk: PreTrainedModel) -> None:
        parts: Any = trunk
        self._words: Tensor = parts.wte.weight
        self._places: Tensor = parts.wpe.weight
        self._heads: int = trunk.config.n_head
        self._layers = tuple(_layers(parts))
        self._last = _Norm.of(parts.ln_f)

    @staticmethod
    def accepts(trunk: PreTrainedModel) -> bool:
        """Return whether every part has the class that `transformers` made, without hooks or replacements."""
        config = trunk.config
        if not isinstance(trunk, GPT2Model) or config._attn_implementation != "sdpa":
            return False
        if config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights:
            return False
        blocks: Any = trunk.h
        activations = {block.mlp.act for block in blocks}
        for part in trunk.modules():
            if type(part) not in _PARTS and part not in activations:
                return False
            if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
                return False
        return True

    def __call__(self, cache: SlotCache, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """See `lmrl.decoding.forward.Forward`."""
        rows, new = ids.shape
        # (rows * new, width): matrix products of two dimensions are the fastest.
        hidden = nn.functional.embedding(ids, self._words) + nn.functional.embedding(positions, self._places)
        hidden = hidden.view(rows * new, -1)
        for index, layer in enumerate(self._layers):
            states = torch.addmm(layer.qkv[0], torch.layer_norm(hidden, *layer.before_attention), layer.qkv[1])
            # (rows, new, 3, heads, head_dim) to three of (rows, heads, new, head_dim).
            query, key, value = states.view(rows, new, 3, self._heads, -1).transpose(1, 3).unbind(2)
            # The cache returns all that the rows may read, (rows, heads, columns, head_dim).
            keys, values = cache.update(key, value, index)
            attended = attend(query, keys, values, mask)
            attended = attended.transpose(1, 2).reshape(rows * new, -1)
            hidden = torch.addmm(layer.attention_out[0], attended, layer.attention_out[1]) + hidden
            states = torch.addmm(layer.up[0], torch.layer_norm(hidden, *layer.before_mlp), layer.up[1])
            hidden = hidden + torch.addmm(layer.down[0], layer.act(states), layer.down[1])
        return torch.layer_norm(hidden, *self._last).view(rows, new, -1)
