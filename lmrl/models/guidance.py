"""A value model that leans on what a language model says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from lmrl.errors import UserError
from lmrl.models.engine import Engine
from lmrl.models.sampling import check_decoding

__all__ = ["Guidance", "combine", "lowest"]

Head: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Guidance:
    """Reads the same contexts with a value model and its own cache.

    Raises:
        UserError: no head, or a number outside of its range.
    """

    engine: Engine
    """Of the value model; never the language model's engine, whose keys and values are of other weights."""
    q_heads: Sequence[Head]
    """``(rows, width)`` hidden vectors to ``(rows, vocabulary)`` float32; the lowest of them counts."""
    beta: float
    """Weight of the values; 0 leaves the language model as it is."""
    support_top_k: int = 0
    """Only the k tokens that the language model finds most probable may be said; 0 allows all."""
    support_top_p: float = 1.0
    """Only the smallest set of tokens to which the language model gives probability p may be said."""

    def __post_init__(self) -> None:
        if not self.q_heads:
            raise UserError("q_heads must have at least one head, got none")
        check_decoding({name: getattr(self, name) for name in ("beta", "support_top_k", "support_top_p")})


def lowest(q_heads: Sequence[Head], hidden: Tensor) -> Tensor:
    """The pessimistic value of every token: the minimum over the heads, ``(rows, vocabulary)`` in float32."""
    return torch.stack([head(hidden).float() for head in q_heads]).amin(0)


def combine(logits: Tensor, q: Tensor, beta: float) -> Tensor:
    """``logits + beta * q`` in float32 (Snell et al. 2023, section 4.3, up to a constant of each state).

    Done before any id is masked, since ``0 * inf`` is not a number.
    """
    return logits.float() + beta * q.float()
