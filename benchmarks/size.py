"""How large a measurement of training and playing is: on a GPU, on a CPU, and so small that it only runs."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

__all__ = ["CPU", "GPU", "GPU_LLAMA", "TINY", "TINY_LLAMA", "Size"]


@dataclass(frozen=True)
class Size:
    """A model of GPT-2's or Llama's kind, what it is trained on, and what it plays."""

    name: str
    device: str
    layers: int
    width: int
    vocabulary: int
    rows: int
    """Of a training batch."""
    length: int
    """Tokens in a row."""
    slots: int
    """Games side by side, and contexts that are read at once."""
    prompt: int
    """Tokens of a context that is read at once."""
    answer: int
    """Tokens that are said after it."""
    turns: int
    """Of a game."""
    action: int
    """Tokens of each action of a game."""
    key_value_heads: int = 0
    """Of a Llama, whose heads are 64 wide too; 0: a GPT-2."""
    feed_forward: int = 0
    """Width inside a Llama's gated feed-forward layers."""
    half: bool = False
    """bfloat16: ``bf16-mixed`` in training, bfloat16 weights in playing. Else float32."""
    compile: bool | str = False
    """Whether training is measured compiled as well; a word names another backend."""
    warm_up: int = 2
    """Training steps that are not counted, at the beginning of each block."""
    steps: int = 3
    """Training steps of a block that are counted."""
    rounds: int = 3
    """How often each side is measured, in turn with the others."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """What is asked of a side, by its name."""

    def architecture(self) -> dict[str, Any]:
        """Arguments of `lmrl.models.lm.build_lm`; heads are 64 wide, as GPT-2's are."""
        positions = max(1024, self.length)
        if self.key_value_heads:
            return {
                "model_type": "llama",
                "num_hidden_layers": self.layers,
                "num_attention_heads": max(1, self.width // 64),
                "num_key_value_heads": self.key_value_heads,
                "hidden_size": self.width,
                "intermediate_size": self.feed_forward,
                "max_position_embeddings": positions,
                "vocab_size": self.vocabulary,
                "tie_word_embeddings": True,
            }
        sizes = {"n_layer": self.layers, "n_head": max(1, self.width // 64), "n_embd": self.width}
        return {**sizes, "n_positions": positions, "vocab_size": self.vocabulary}

    @property
    def block_weights(self) -> int:
        """Weights of the matrices of a layer."""
        if not self.key_value_heads:
            return 12 * self.width**2
        queries_and_output = 2 * self.width**2
        keys_and_values = 2 * self.width * 64 * self.key_value_heads
        gate_up_and_down = 3 * self.width * self.feed_forward
        return queries_and_output + keys_and_values + gate_up_and_down

    @property
    def label(self) -> str:
        """Size and precision, for the names of rows."""
        return f"{self.name}, {'bf16' if self.half else 'float32'}"

    def autocast(self) -> AbstractContextManager[None]:
        """The arithmetic of training."""
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.half)


#: GPT-2 small size.
GPU = Size(
    name="GPT-2 small size",
    device="cuda",
    layers=12,
    width=768,
    vocabulary=50_257,
    rows=32,
    length=1_024,
    slots=256,
    prompt=512,
    answer=64,
    turns=30,
    action=8,
    half=True,
    compile=True,
    warm_up=5,
    steps=10,
    rounds=1,
    asked={"BC": ">= 45% of peak", "ILQL": ">= 35% of peak", "rollout": ">= 5x"},
)
#: The size of SmolLM2-135M.
GPU_LLAMA = replace(
    GPU,
    name="SmolLM2-135M size",
    layers=30,
    width=576,
    vocabulary=49_152,
    key_value_heads=3,
    feed_forward=1_536,
    asked={"BC": ">= 25% of peak"},
)
#: Of a minute on a core.
CPU = Size(
    name="4 x 128",
    device="cpu",
    layers=4,
    width=128,
    vocabulary=4_096,
    rows=4,
    length=256,
    slots=8,
    prompt=128,
    answer=16,
    turns=10,
    action=8,
    warm_up=1,
    steps=2,
)
#: So small that its figures mean nothing.
TINY = Size(
    name="tiny",
    device="cpu",
    layers=1,
    width=64,
    vocabulary=1_300,
    rows=2,
    length=16,
    slots=2,
    prompt=8,
    answer=3,
    turns=2,
    action=2,
    compile="eager",
    warm_up=1,
    steps=1,
    rounds=1,
)
TINY_LLAMA = replace(TINY, key_value_heads=1, feed_forward=128)
