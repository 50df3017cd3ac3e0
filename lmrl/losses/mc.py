"""The regression of Q to Monte Carlo returns (Abdulhai et al. 2025)."""

from typing import NamedTuple

from torch import Tensor

from lmrl.losses.token_scores import TokenScores

__all__ = ["MCLoss", "mc_loss"]


class MCLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens; `loss` is what is minimised."""

    loss: Tensor
    q_loss: Tensor
    cql_loss: Tensor
    q_mean: Tensor


def mc_loss(q: TokenScores, return_to_go: Tensor, *, cql_weight: float) -> MCLoss:
    """``mean(1/2 (Q - G)^2) + cql_weight * mean(CE(Q))``.

    Args:
        q: Q of the tokens taken and the cross-entropy of its softmax, (N,) each.
        return_to_go: (N,) discounted return from each action token to the end of its episode.
        cql_weight: weight of the cross-entropy that keeps Q of unseen tokens down.
    """
    count = max(1, return_to_go.numel())
    q_loss = 0.5 * (q.score - return_to_go).square().sum() / count
    # -log softmax(Q)[token] = logsumexp Q - Q[token]: the regulariser of discrete CQL (Kumar et al. 2020).
    cql_loss = q.nll.sum() / count
    return MCLoss(
        loss=q_loss + cql_weight * cql_loss,
        q_loss=q_loss,
        cql_loss=cql_loss,
        q_mean=q.score.sum() / count,
    )
