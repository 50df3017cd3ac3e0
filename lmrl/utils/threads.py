"""How many threads compute on the CPU."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy

__all__ = ["SHARE", "threads_for"]

SHARE = "LMRL_SHARE"
"""Environment variable with the number of threads that a command got as its share of the cores."""

_MAX_PARAMETERS = 20_000_000
"""Parameters of the largest model that computes with one thread."""


@contextmanager
def threads_for(model: nn.Module | None) -> Iterator[None]:
    """Compute with one thread while a small model works, unless the user has set ``$OMP_NUM_THREADS``.

    Threads that share the small matrices of such a model wait for each other longer than they compute.
    ``lmrl reproduce`` also sets the variable, as the most that a command may use (`SHARE`).

    Args:
        model: what works; None changes nothing.
    """
    before = torch.get_num_threads()
    chosen = os.environ.get("OMP_NUM_THREADS")
    is_chosen = bool(chosen) and chosen != os.environ.get(SHARE)
    if model is not None and not is_chosen and _size(model) <= _MAX_PARAMETERS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _size(model: nn.Module) -> int:
    """Return the number of parameters; those of lazy layers are not known yet and do not count."""
    return sum(part.numel() for part in model.parameters() if not is_lazy(part))
