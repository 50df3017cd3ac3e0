"""Returns in quantile bins."""

import torch
from torch import Tensor

__all__ = ["bin_means", "bin_of", "quantile_edges"]


def quantile_edges(returns: Tensor, bins: int) -> Tensor:
    """Return the lower edges of bins that hold about equally many returns; the lowest bin has none.

    Each edge is a return that occurs, so that equal returns share a bin. It is the next return at or above the
    quantile, unless many equal returns lie there. Edges then move to neighbouring returns, so that different returns
    share a bin only where there are more of them than bins. With fewer different returns than bins, each has a bin of
    its own and the other bins are empty. The last bin is never empty.

    Args:
        returns: (n,).
        bins: number of bins.

    Returns:
        (bins - 1,) edges in ascending order.
    """
    shares = torch.arange(1, bins, dtype=torch.float64) / bins
    quantiles = returns.double().quantile(shares, interpolation="higher").to(returns.dtype)
    distinct: Tensor = torch.unique(returns)
    last = len(distinct) - 1
    edges = []
    previous = 0
    for number, wanted in enumerate(torch.searchsorted(distinct, quantiles).tolist(), start=1):
        # With this edge here, each later edge can still be one return higher than the edge before it.
        highest = last - (bins - 1 - number)
        if len(distinct) >= bins:
            edge = min(max(wanted, previous + 1), highest)
        else:
            edge = max(min(wanted, previous + 1), highest)
        edges.append(edge)
        previous = edge
    return distinct[torch.tensor(edges, dtype=torch.int64)]


def bin_of(returns: Tensor, edges: Tensor) -> Tensor:
    """(n,) the bin of each return, from 0: the number of edges that it reaches. Both are of the same precision."""
    return (returns[:, None] >= edges).sum(-1)


def bin_means(returns: Tensor, edges: Tensor) -> Tensor:
    """(bins,) mean return of each bin; of an empty one not a number."""
    index = bin_of(returns, edges)
    bins = len(edges) + 1
    total = torch.zeros(bins, dtype=torch.float64).index_add_(0, index, returns.double())
    return (total / index.bincount(minlength=bins)).to(returns.dtype)
