"""Returns in quantile bins."""

import torch
from torch import Tensor

__all__ = ["bin_means", "bin_of", "quantile_edges"]


def quantile_edges(returns: Tensor, bins: int) -> Tensor:
    """The returns at which bins begin that hold about equally many; one bin has none.

    Each is a return that occurs, the next at or above the quantile, so that equal returns share a bin. Where many are
    equal, edges are too, and bins between them are empty. The last one never is.

    Args:
        returns: (n,).
        bins: how many.

    Returns:
        (bins - 1,) rising edges.
    """
    shares = torch.arange(1, bins, dtype=torch.float64) / bins
    return returns.double().quantile(shares, interpolation="higher").to(returns.dtype)


def bin_of(returns: Tensor, edges: Tensor) -> Tensor:
    """(n,) the bin of each return, from 0: the number of edges that it reaches. Both are of the same precision."""
    return (returns[:, None] >= edges).sum(-1)


def bin_means(returns: Tensor, edges: Tensor) -> Tensor:
    """(bins,) mean return of each bin; of an empty one not a number."""
    place, bins = bin_of(returns, edges), len(edges) + 1
    total = torch.zeros(bins, dtype=torch.float64).index_add_(0, place, returns.double())
    return (total / place.bincount(minlength=bins)).to(returns.dtype)
