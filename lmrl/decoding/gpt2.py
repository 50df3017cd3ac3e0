"""The forward pass of a plain GPT-2, operation by operation: small models spend half their time between operations."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention, GPT2Block, GPT2Model
from transformers.pytorch_utils import Conv1D

from lmrl.decoding.cache import SlotCache

__all__ = ["Forward", "forward_of"]

Forward: TypeAlias = Callable[[SlotCache, Tensor, Tensor, Tensor], Tensor]
"""``(cache, ids, positions, mask)`` to ``(rows, new, width)`` hidden vectors; keys and values go into the cache."""

_PARTS = (GPT2Model, GPT2Block, GPT2Attention, GPT2MLP, Conv1D, nn.Embedding, nn.LayerNorm, nn.Dropout, nn.ModuleList)


def forward_of(trunk: PreTrainedModel) -> Forward:
    """How ids are read: by the operations of GPT-2 alone where the model is one and nothing else, else by the model.

    Both give the same numbers, bit by bit on a CPU; the first takes a half to nine tenths of the time, the less the
    smaller the model and the batch. A model with adapters, hooks, shards or other scores than GPT-2's is asked itself.

    Args:
        trunk: the model without its head, in eval mode whenever it reads.
    """
    if _is_plain(trunk):
        return _Plain(trunk)

    def ask(cache: SlotCache, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        output = trunk(
            input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    return ask


def _is_plain(trunk: PreTrainedModel) -> bool:
    """Whether every part is the very class that `transformers` made, and nobody listens in or has replaced it."""
    config = trunk.config
    if not isinstance(trunk, GPT2Model) or config._attn_implementation != "sdpa":
        return False
    if config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights:
        return False
    blocks: Any = trunk.h
    activations = {block.mlp.act for block in blocks}
    return all(
        (type(part) in _PARTS or part in activations)
        and not (part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part))
        for part in trunk.modules()
    )


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
        attention, mlp = block.attn, block.mlp
        matrices = [(c.bias, c.weight) for c in (attention.c_attn, attention.c_proj, mlp.c_fc, mlp.c_proj)]
        qkv, attention_out, up, down = matrices
        norms = _Norm.of(block.ln_1), _Norm.of(block.ln_2)
        yield _Layer(norms[0], qkv, attention_out, norms[1], up, mlp.act, down)


class _Plain:
    def __init__(self, trunk: Any) -> None:
        self._words: Tensor = trunk.wte.weight
        self._places: Tensor = trunk.wpe.weight
        self._heads: int = trunk.config.n_head
        self._layers, self._last = tuple(_layers(trunk)), _Norm.of(trunk.ln_f)

    def __call__(self, cache: SlotCache, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        rows, new = ids.shape
        hidden = nn.functional.embedding(ids, self._words) + nn.functional.embedding(positions, self._places)
        hidden = hidden.view(rows * new, -1)
        for index, layer in enumerate(self._layers):
            states = torch.addmm(layer.qkv[0], torch.layer_norm(hidden, *layer.before_attention), layer.qkv[1])
            # (rows, new, 3, heads, head_dim) to three of (rows, heads, new, head_dim).
            query, key, value = states.view(rows, new, 3, self._heads, -1).transpose(1, 3).unbind(2)
            keys, values = cache.update(key, value, index)
            attended = scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            attended = attended.transpose(1, 2).reshape(rows * new, -1)
            hidden = torch.addmm(layer.attention_out[0], attended, layer.attention_out[1]) + hidden
            states = torch.addmm(layer.up[0], torch.layer_norm(hidden, *layer.before_mlp), layer.up[1])
            hidden = hidden + torch.addmm(layer.down[0], layer.act(states), layer.down[1])
        return torch.layer_norm(hidden, *self._last).view(rows, new, -1)
