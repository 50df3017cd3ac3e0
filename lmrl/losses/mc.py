"""Monte Carlo returns: Q is regressed to what really followed."""

from typing import NamedTuple

from torch import Tensor

from lmrl.losses.gather import Taken

__all__ = ["MCLoss", "mc_loss"]


class MCLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens; `loss` is what is minimised."""

    loss: Tensor
    q_loss: Tensor
    cql_loss: Tensor
    q_mean: Tensor


def mc_loss(q: Taken, return_to_go: Tensor, *, cql_weight: float) -> MCLoss:
    """``mean(1/2 (Q - G)^2) + cql_weight * mean(CE(Q))`` (Abdulhai et al. 2025, MC returns).

    Args:
        q: Q of the tokens taken and the cross-entropy of its softmax, (N,) each.
        return_to_go: (N,) discounted return from each action token to the end of its episode.
        cql_weight: weight of the cross-entropy that keeps Q of unseen tokens down.
    """
    count = max(1, return_to_go.numel())
    q_loss = 0.5 * (q.score - return_to_go).square().sum() / count
    cql_loss = q.nll.sum() / count
    return MCLoss(q_loss + cql_weight * cql_loss, q_loss, cql_loss, q.score.sum() / count)
