"""The forward pass of a plain Llama, operation by operation, over matrices that are joined and transposed once."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, silu
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from lmrl.decoding.cache import SlotCache, attend

__all__ = ["LlamaForward"]

_MAX_ANGLES = 2**25  # numbers in the table of rotary angles, 128 MiB
_PARTS = (
    LlamaModel,
    LlamaDecoderLayer,
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    nn.Embedding,
    nn.Linear,
    nn.ModuleList,
)


class _Layer(NamedTuple):
    """Weights of one block. Those of a norm are part of the matrices behind it."""

    qkv: Tensor
    """``(query, key and value heads * head_dim, width)``."""
    attention_out: Tensor
    """``(query heads * head_dim, width)``."""
    gate_up: Tensor
    """``(2 * inner, width)``."""
    down: Tensor
    """``(inner, width)``."""


class LlamaForward:
    """Reads as the model does, up to rounding: sums are those of joined matrices.

    Weights are copied: make another one when they have changed.

    Args:
        trunk: a model for which `accepts` is true.
    """

    def __init__(self, trunk: PreTrainedModel) -> None:
        config = trunk.config
        parts = cast(Any, trunk)
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._words: Tensor = parts.embed_tokens.weight
        self._last: LlamaRMSNorm = parts.norm
        self._eps: float = config.rms_norm_eps
        with torch.no_grad():
            self._layers = tuple(_layer(block) for block in parts.layers)
            places = torch.arange(config.max_position_embeddings, device=trunk.device)[None]
            cos, sin = parts.rotary_emb(self._words, places)
        half = sin.shape[-1] // 2
        self._cos = cos[0]
        # x rolled by half its width is what rotation asks for, but for the sign of the first half.
        self._sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)

    @staticmethod
    def accepts(trunk: PreTrainedModel) -> bool:
        """Return whether this forward pass fits the model: a Llama whose parts are the classes of `transformers`.

        It must have plain rotary embeddings and no bias, hook, adapter or replaced function. Autocast must be off.
        """
        config = trunk.config
        if not isinstance(trunk, LlamaModel) or config._attn_implementation != "sdpa":
            return False
        if config.rope_parameters["rope_type"] != "default" or config.hidden_act != "silu":
            return False
        # Its angles are kept for every position.
        if config.max_position_embeddings * config.head_dim > _MAX_ANGLES:
            return False
        if trunk.dtype not in (torch.float32, torch.bfloat16) or torch.is_autocast_enabled(trunk.device.type):
            return False
        blocks: Any = trunk.layers
        activations = {block.mlp.act_fn for block in blocks}
        for part in trunk.modules():
            if type(part) not in _PARTS and part not in activations:
                return False
            if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part):
                return False
            if getattr(part, "bias", None) is not None:
                return False
        return True

    def __call__(self, cache: SlotCache, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """See `lmrl.decoding.forward.Forward`."""
        rows, new = ids.shape
        turned = self._heads + self._kv_heads  # queries and keys are rotated, values are not
        # (rows, new, 1, head_dim) the angles of each position.
        cos = embedding(positions, self._cos)[:, :, None]
        sin = embedding(positions, self._sin)[:, :, None]
        hidden = embedding(ids, self._words).view(rows * new, -1)
        for index, layer in enumerate(self._layers):
            states = linear(self._normed(hidden), layer.qkv).view(rows, new, turned + self._kv_heads, -1)
            # (rows, heads, new, head_dim), queries first.
            turning = states[:, :, :turned]
            turning = torch.addcmul(turning * cos, turning.roll(turning.shape[-1] // 2, -1), sin).transpose(1, 2)
            value = states[:, :, turned:].transpose(1, 2)
            keys, values = cache.update(turning[:, self._heads :], value, index)
            attended = attend(turning[:, : self._heads], keys, values, mask)
            attended = attended.transpose(1, 2).reshape(rows * new, -1)
            hidden = torch.addmm(hidden, attended, layer.attention_out)
            gate, up = linear(self._normed(hidden), layer.gate_up).chunk(2, -1)
            hidden = torch.addmm(hidden, silu(gate).mul_(up), layer.down)
        return (self._normed(hidden) * self._last.weight).view(rows, new, -1)

    def _normed(self, hidden: Tensor) -> Tensor:
        """Divided by the root mean square, in float32; the weights of the norm come with the next matrix."""
        exact = hidden.float()
        return (exact * exact.square().mean(-1, keepdim=True).add_(self._eps).rsqrt_()).to(hidden.dtype)


def _layer(block: Any) -> _Layer:
    attention = block.self_attn
    mlp = block.mlp
    qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
    # The weight of a norm scales the inputs of the matrix behind it, so it is multiplied into its columns.
    return _Layer(
        _scaled(qkv, block.input_layernorm.weight),
        attention.o_proj.weight.t().contiguous(),
        _scaled(gate_up, block.post_attention_layernorm.weight),
        mlp.down_proj.weight.t().contiguous(),
    )


def _scaled(matrix: Tensor, inputs: Tensor) -> Tensor:
    return (matrix.float() * inputs.float()).to(matrix.dtype)
