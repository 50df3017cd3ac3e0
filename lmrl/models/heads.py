"""Value heads on a language model's hidden vectors. They stay in float32 whatever the trunk runs in."""

import math

import torch
from torch import Tensor, nn

from lmrl.losses import LinearScores, Taken, linear_scores, score_taken, taken

__all__ = ["ValueHead"]


class ValueHead(nn.Module):
    """Two layers, ReLU between; starts as the constant ``bias`` everywhere.

    A constant near the data's typical return matters: with a start at zero and negative rewards the values of tokens
    that the data never shows stay above those that it does, and acting on them leaves the data's support.
    """

    def __init__(self, width: int, out: int, bias: float = 0.0, inner: int | None = None) -> None:
        """Make a head for hidden vectors of size ``width`` with ``out`` numbers per vector.

        ``inner`` is the size between the layers (``width`` if left out), and so the rank of all that the head can say:
        a vocabulary of 50,000 by an inner size of 64 are 3 million weights.
        """
        super().__init__()
        inner = inner or width
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, out)
        nn.init.trunc_normal_(self.inner.weight, std=1.0 / math.sqrt(width))
        nn.init.zeros_(self.inner.bias)
        nn.init.zeros_(self.outer.weight)
        nn.init.constant_(self.outer.bias, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(n, width) in any precision -> (n, out) float32."""
        with torch.autocast(hidden.device.type, enabled=False):
            result: Tensor = self.outer(self._within(hidden))
        return result

    def taken(self, hidden: Tensor, state: Tensor, token: Tensor) -> Taken:
        """What the head says about N tokens; see `lmrl.losses.taken`.

        Args:
            hidden: (S, width) at the distinct states.
            state: (N,) index of the state of each token.
            token: (N,) which of the ``out`` numbers.
        """
        with torch.autocast(hidden.device.type, enabled=False):
            return taken(self._scores(hidden), state, token)

    def score_taken(self, hidden: Tensor, state: Tensor, token: Tensor) -> Tensor:
        """(N,) the numbers of the tokens alone: much cheaper if ``out`` is large. Arguments as of `taken`."""
        with torch.autocast(hidden.device.type, enabled=False):
            return score_taken(self._scores(hidden), state, token)

    def _scores(self, hidden: Tensor) -> Tensor | LinearScores:
        return linear_scores(self._within(hidden), self.outer.weight, self.outer.bias)

    def _within(self, hidden: Tensor) -> Tensor:
        return torch.relu(self.inner(hidden.float()))
