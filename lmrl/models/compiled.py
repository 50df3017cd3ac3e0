"""`torch.compile`: which backend, and a decode step made by it."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lmrl.errors import unknown
from lmrl.models.cache import SlotCache
from lmrl.models.masks import causal_mask

__all__ = ["Step", "backend_of", "is_static", "step_for"]

Step: TypeAlias = Callable[[PreTrainedModel, SlotCache, Tensor, Tensor, int, torch.dtype], Tensor]

_VARIANTS = 64  # shapes and models that may be compiled before torch gives up: buckets of columns, times models


def backend_of(choice: bool | str) -> str | None:
    """The backend that a setting names; true is ``inductor``, false is None.

    Raises:
        UserError: torch has no such backend.
    """
    if not choice:
        return None
    backend = "inductor" if choice is True else choice
    if backend not in (known := torch.compiler.list_backends(exclude_tags=())):
        raise unknown("compile", backend, known)
    return backend


def is_static(device: torch.device) -> bool:
    """Whether a compiled step has one shape for all rows and few for their columns: a CUDA graph cannot have others.

    A CPU has no graphs to replay, and would pay for every row that has nothing to say.
    """
    return device.type != "cpu"


def step_for(choice: bool | str, device: torch.device) -> Step | None:
    """`_read_new`, compiled; None if it is not to be.

    What is compiled belongs to the function, not to whoever asked for it: a policy that is made anew every round finds
    it again, and weights are its inputs.
    """
    backend = backend_of(choice)
    if backend is None:
        return None
    static = is_static(device)
    # "reduce-overhead" is inductor with CUDA graphs.
    how: dict[str, Any] = {"mode": "reduce-overhead"} if static and backend == "inductor" else {"backend": backend}
    limits = torch._dynamo.config  # torch.compile takes a limit of its own from a later release on
    limits.cache_size_limit = max(limits.cache_size_limit, _VARIANTS)
    step: Step = torch.compile(_read_new, **how, dynamic=not static)
    return step


def _read_new(
    trunk: PreTrainedModel, cache: SlotCache, ids: Tensor, positions: Tensor, used: int, dtype: torch.dtype
) -> Tensor:
    """Read ids at the place that the cache was told, each seeing the columns up to its own position.

    Args:
        trunk: the model without its head.
        cache: where keys and values go.
        ids: ``(rows, new)``.
        positions: ``(rows, new)``.
        used: columns that are read.
        dtype: of the model's hidden vectors.

    Returns:
        ``(rows, new, width)`` hidden vectors.
    """
    mask = causal_mask(positions, used, dtype)
    output = trunk(input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True)
    hidden: Tensor = output.last_hidden_state
    return hidden
