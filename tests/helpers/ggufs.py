"""Small Llamas in GGUF files, written as llama.cpp's converter writes them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from lmrl.models.tokenizer import load_tokenizer

HEADS = 4
KEY_VALUE_HEADS = 2
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' "
    "+ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def tiny_llama() -> LlamaForCausalLM:
    """A model for the tokens of `vocabulary`, with logits that are not all alike."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary()[0]),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        max_position_embeddings=1024,
        rms_norm_eps=1e-5,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def vocabulary() -> tuple[list[str], list[tuple[str, str]], list[str]]:
    """Tokens, merges and control tokens: those of the bundled tokenizer, and the ends of turns."""
    backend = load_tokenizer().backend_tokenizer
    ids = backend.get_vocab()
    control = ["<|im_start|>", "<|im_end|>"]
    tokens = [*sorted(ids, key=lambda token: ids[token]), *control]
    merges = [tuple(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    return tokens, merges, ["<|endoftext|>", "<|pad|>", *control]


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
    *,
    more: Mapping[str, Tensor] | None = None,
    **fields: Any,
) -> None:
    """Write a model with the tokens of `vocabulary`.

    Args:
        path: of the file.
        model: of `tiny_llama`.
        more: further tensors by their names.
        **fields: ``blocks``, the number of layers that it claims to have; ``pre``, the rule that splits texts; ``eot``,
            the number of a second token that ends a turn; ``parts``, the number of files.
    """
    gguf = pytest.importorskip("gguf", reason="GGUF files need the extra gguf: pip install 'lmrl[gguf]'")
    tokens, merges, control = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    config = model.config
    writer.add_block_count(fields.get("blocks", config.num_hidden_layers))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_VALUE_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(fields.get("pre", "gpt-2"))
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in control else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|pad|>"))
    if "eot" in fields:
        writer.add_eot_token_id(fields["eot"])
    if "parts" in fields:
        writer.add_uint16("split.count", fields["parts"])
    writer.add_chat_template(CHATML)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":  # tied to the embeddings
            writer.add_tensor(_name(name), _as_written(name, tensor).numpy())
    for name, tensor in (more or {}).items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name(name: str) -> str:
    outer = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in outer:
        return outer[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.weight"


def _as_written(name: str, tensor: Tensor) -> Tensor:
    """In llama.cpp neighbouring numbers of a head are turned together, in `transformers` those of its two halves."""
    if "q_proj" in name:
        heads = HEADS
    elif "k_proj" in name:
        heads = KEY_VALUE_HEADS
    else:
        return tensor
    halves = tensor.view(heads, 2, -1, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()
