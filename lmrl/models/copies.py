"""Copies of a module that share what never learns: frozen ones, and slow ones that follow."""

from collections.abc import Iterable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

__all__ = ["follow", "frozen_copy", "sharing_copy"]

M = TypeVar("M", bound=nn.Module)


def sharing_copy(module: M) -> M:
    """A copy with modules of its own, which holds the very parameters that do not learn, and copies of the others."""
    return deepcopy(module, {id(p): p for p in module.parameters() if not p.requires_grad})


def frozen_copy(module: M) -> M:
    """A `sharing_copy` in eval mode without gradients."""
    return sharing_copy(module).requires_grad_(False).eval()


@torch.no_grad()
def follow(slow: Iterable[Tensor], fast: Iterable[Tensor], rate: float) -> None:
    """Move slow parameters towards fast ones: ``slow <- (1 - rate) * slow + rate * fast``.

    The slow parameters must be float32: in bfloat16 steps this small round to nothing.
    """
    torch._foreach_lerp_(list(slow), list(fast), rate)
