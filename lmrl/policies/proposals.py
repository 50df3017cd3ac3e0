"""What proposals are worth, token by token: to a language model, and to a value model."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from lmrl.models.engine import Engine
from lmrl.models.guidance import Head, lowest
from lmrl.models.sampling import process_logits

__all__ = ["Measure", "advantage", "likelihood", "proposal_scores"]

Measure: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""``(n, width)`` hidden vectors and the ``(n,)`` ids that follow them to ``(n,)`` float32."""


def likelihood(engine: Engine, invalid: Tensor) -> Measure:
    """``log pi(id)`` among the ids that may be said."""

    def measure(hidden: Tensor, ids: Tensor) -> Tensor:
        return process_logits(engine.logits(hidden), invalid=invalid).gather(1, ids[:, None])[:, 0]

    return measure


def advantage(q_heads: Sequence[Head], v_head: Head | None) -> Measure:
    """``min_i Q_i(id) - V``; without a V head the lowest Q alone."""

    def measure(hidden: Tensor, ids: Tensor) -> Tensor:
        q = lowest(q_heads, hidden).gather(1, ids[:, None])[:, 0]
        return q if v_head is None else q - v_head(hidden).reshape(-1).float()

    return measure


def proposal_scores(
    engine: Engine,
    measure: Measure,
    slots: Sequence[int],
    contexts: Sequence[Sequence[int]],
    proposals: Sequence[Sequence[int]],
) -> Tensor:
    """Sum a measure over the ids of every proposal after every context, in one forward pass.

    Returns:
        ``(contexts, proposals)`` float32 on the CPU.
    """
    hidden = engine.branch(slots, contexts, proposals)
    owner, depth, ids = torch.tensor(
        [(index, step, token) for index, proposal in enumerate(proposals) for step, token in enumerate(proposal)]
    ).unbind(1)
    with torch.inference_mode():
        states = hidden[:, owner, depth]  # (contexts, all ids of all proposals, width)
        tokens = ids.to(hidden.device).repeat(len(slots))
        values = measure(states.reshape(len(tokens), -1), tokens).reshape(len(slots), -1).cpu()
    return torch.zeros(len(slots), len(proposals)).index_add(1, owner, values)
