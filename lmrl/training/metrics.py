"""Metrics of `torchmetrics` over action tokens, batches and ranks."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.text import Perplexity

__all__ = ["FarthestRatio", "TermMeans", "TokenMeans", "TokenPerplexity"]


class TermMeans(NamedTuple):
    """What `TokenMeans` computes."""

    means: dict[str, Tensor]
    """() each; 0 where there were no tokens."""
    tokens: Tensor
    """() int64, over how many tokens."""


class TokenMeans(Metric):
    """Means of several terms over action tokens: for each what a weighted `torchmetrics.MeanMetric` is.

    One state holds the sums of all terms. A `MeanMetric` per term has two states each, and every state is gathered by
    itself: with five terms, ten messages in place of two at each training step.

    Args:
        names: of the terms.
        **settings: arguments of `torchmetrics.Metric`.
    """

    full_state_update = False
    totals: Tensor
    tokens: Tensor

    def __init__(self, names: Sequence[str], **settings: Any) -> None:
        super().__init__(dist_sync_fn=_all_gather, **settings)
        self.names = tuple(names)
        self.add_state("totals", torch.zeros(len(self.names)), dist_reduce_fx="sum", persistent=True)
        self.add_state("tokens", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum", persistent=True)

    def update(self, means: Mapping[str, Tensor], tokens: int | Tensor) -> None:
        """Add a batch.

        Args:
            means: () each, over the tokens of the batch.
            tokens: their number.
        """
        self.totals = self.totals + torch.stack([means[name].detach().float() for name in self.names]) * tokens
        self.tokens = self.tokens + tokens

    def compute(self) -> TermMeans:
        """Over all batches, and all ranks."""
        means = self.totals / self.tokens.clamp(min=1)
        return TermMeans(dict(zip(self.names, means.unbind(), strict=True)), self.tokens)


class TokenPerplexity(Perplexity):
    """`torchmetrics.text.Perplexity` of action tokens whose log-probabilities the loss has computed already."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(None, dist_sync_fn=_all_gather, **settings)  # type: ignore[arg-type]
        self.persistent(True)

    def update(self, nll: Tensor, tokens: int | Tensor) -> None:
        """Add a batch.

        Args:
            nll: () mean negative log-likelihood of its tokens, in nats.
            tokens: their number.
        """
        self.total_log_probs = self.total_log_probs + nll.detach().float() * tokens
        self.count = self.count + tokens


class FarthestRatio(Metric):
    """Of ratios of probabilities the one that is farthest from 1, by the logarithm; 1 where there were none."""

    full_state_update = False
    below: Tensor
    above: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(dist_sync_fn=_all_gather, **settings)
        for name in ("below", "above"):
            self.add_state(name, torch.zeros(()), dist_reduce_fx="max")

    def update(self, ratio: Tensor) -> None:
        """Add a ratio, ()."""
        self.below = torch.maximum(self.below, -ratio.detach().log())
        self.above = torch.maximum(self.above, ratio.detach().log())

    def compute(self) -> Tensor:
        """() the ratio."""
        return torch.where(self.above >= self.below, self.above, -self.below).exp()


def _all_gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Of all ranks; the states above have the same shape on each, so that shapes need not be exchanged before."""
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, tensor.contiguous(), group)
    return found
