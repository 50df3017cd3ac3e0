"""Value heads on a language model's hidden vectors. They stay in float32 whatever the trunk runs in."""

import math

import torch
from torch import Tensor, nn

__all__ = ["ValueHead"]


class ValueHead(nn.Module):
    """Two layers, ReLU between; starts as the constant ``bias`` everywhere.

    A constant near the data's typical return matters: with a start at zero and negative rewards the values of tokens
    that the data never shows stay above those that it does, and acting on them leaves the data's support.
    """

    def __init__(self, width: int, out: int, bias: float = 0.0) -> None:
        """Make a head for hidden vectors of size ``width`` with ``out`` numbers per vector."""
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, out)
        nn.init.trunc_normal_(self.inner.weight, std=1.0 / math.sqrt(width))
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.weight)
        nn.init.constant_(self.outer.bias, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(n, width) in any precision -> (n, out) float32."""
        with torch.autocast(hidden.device.type, enabled=False):
            result: Tensor = self.outer(torch.relu(self.inner(hidden.float())))
        return result
