"""Whether a model still has the weights that something was computed with."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

__all__ = ["Weights"]

_SAMPLES = 256  # numbers of each tensor that are compared

_steps = 0


def _count(*_: Any) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count)


class Weights:
    """Notices that a model's parameters were written to, by whomever.

    Any step of any optimizer of torch counts: fused kernels leave a tensor's version as it is, and under FSDP another
    tensor than the one that is read takes the step. Beside it the tensors' addresses and versions are compared, and of
    each tensor 256 numbers at equal distances: for writers that pass autograd by, such as ``.data`` and collectives.

    A write that is none of these and touches fewer than one in 256 of a tensor's numbers can go unnoticed.

    Args:
        model: whose parameters; they may be replaced by others of the same names.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._places = [(m._parameters, name) for m in modules for name, p in m._parameters.items() if p is not None]
        self._marks, self._sample = self._look()

    def changed(self) -> bool:
        """Whether they are others than at the last call."""
        marks, sample = self._look()
        same = marks == self._marks and torch.equal(sample, self._sample)
        self._marks, self._sample = marks, sample
        return not same

    def _look(self) -> tuple[list[int], Tensor]:
        found = [p for holder, name in self._places if (p := holder[name]) is not None]
        marks = [_steps]
        for p in found:
            marks += (p.data_ptr(), 0 if p.is_inference() else p._version)
        with torch.inference_mode():
            return marks, torch.cat([_spread(p) for p in found])


def _spread(tensor: Tensor) -> Tensor:
    size = tensor.numel()
    if not tensor.is_contiguous():
        return tensor.flatten()[:: max(1, size // _SAMPLES)]
    return tensor.as_strided((min(_SAMPLES, size),), (max(1, size // _SAMPLES),))
