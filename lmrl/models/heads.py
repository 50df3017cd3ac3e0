"""Value heads on hidden vectors, in float32 whatever the trunk runs in; frozen copies and target networks."""

import math
from collections.abc import Iterable
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn

from lmrl.losses import LinearScores, TokenScores, gather_scores, gather_token_scores, linear_scores

__all__ = ["ValueHead", "copy_sharing_frozen", "frozen_copy", "polyak_update"]


class ValueHead(nn.Module):
    """Two layers, ReLU between; starts as the constant ``bias`` everywhere.

    A constant near the data's typical return matters. With a start at zero and negative rewards, tokens that are not in
    the data keep higher values than those in the data, and acting on them leaves the data's support.
    """

    def __init__(self, width: int, out: int, bias: float = 0.0, inner: int | None = None) -> None:
        """Make a head for hidden vectors of size ``width`` with ``out`` numbers per vector.

        ``inner`` is the size between the layers (``width`` if left out), and so the rank of the head's output: a
        vocabulary of 50,000 by an inner size of 64 has 3 million weights.
        """
        super().__init__()
        inner = inner or width
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, out)
        nn.init.trunc_normal_(self.inner.weight, std=1.0 / math.sqrt(width))
        nn.init.zeros_(self.inner.bias)
        # Zero weights in the outer layer make the head a constant; its gradient is not zero, as `inner` is random.
        nn.init.zeros_(self.outer.weight)
        nn.init.constant_(self.outer.bias, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(n, width) in any precision -> (n, out) float32."""
        with torch.autocast(hidden.device.type, enabled=False):  # values stay float32 in mixed precision
            result: Tensor = self.outer(self._within(hidden))
        return result

    def gather_token_scores(self, hidden: Tensor, state: Tensor, token: Tensor) -> TokenScores:
        """Scores of N tokens; see `lmrl.losses.gather_token_scores`.

        Args:
            hidden: (S, width) hidden vectors at the distinct states.
            state: (N,) index of the state of each token.
            token: (N,) index among the ``out`` numbers.
        """
        with torch.autocast(hidden.device.type, enabled=False):
            return gather_token_scores(self._scores(hidden), state, token)

    def gather_scores(self, hidden: Tensor, state: Tensor, token: Tensor) -> Tensor:
        """(N,) the scores alone: much cheaper if ``out`` is large. For arguments see `gather_token_scores`."""
        with torch.autocast(hidden.device.type, enabled=False):
            return gather_scores(self._scores(hidden), state, token)

    def _scores(self, hidden: Tensor) -> Tensor | LinearScores:
        return linear_scores(self._within(hidden), self.outer.weight, self.outer.bias)

    def _within(self, hidden: Tensor) -> Tensor:
        return torch.relu(self.inner(hidden.float()))


M = TypeVar("M", bound=nn.Module)


def copy_sharing_frozen(module: M) -> M:
    """A copy of a module that shares the parameters which do not learn, and has copies of the others."""
    # Objects in deepcopy's memo count as copied already.
    return deepcopy(module, {id(p): p for p in module.parameters() if not p.requires_grad})


def frozen_copy(module: M) -> M:
    """A `copy_sharing_frozen` in eval mode without gradients."""
    return copy_sharing_frozen(module).requires_grad_(False).eval()


@torch.no_grad()
def polyak_update(target: Iterable[Tensor], online: Iterable[Tensor], rate: float) -> None:
    """Move target parameters towards online ones: ``target <- (1 - rate) * target + rate * online``.

    The target parameters must be float32: in bfloat16 steps this small round to nothing.
    """
    torch._foreach_lerp_(list(target), list(online), rate)
