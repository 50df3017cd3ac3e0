"""Monte Carlo returns, and the regression of Q to them."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lmrl.losses.token_scores import TokenScores

__all__ = ["MCLoss", "mc_loss", "returns_to_go", "td_target"]


def returns_to_go(rewards: ArrayLike, gamma: float) -> NDArray[np.float64]:
    """Discounted sum of the rewards from each step to the end: ``G_k = r_k + gamma * G_{k+1}``.

    A reverse scan in float64; dividing cumulative products of gamma instead gives NaN once they underflow.

    Args:
        rewards: (T,) one per action token of a whole episode.
        gamma: discount per action token.

    Returns:
        (T,) float64.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    returns = np.empty_like(rewards)
    tail = 0.0
    for step in range(len(rewards) - 1, -1, -1):
        tail = rewards[step] + gamma * tail
        returns[step] = tail
    return returns


def td_target(reward: Tensor, next_value: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """``r + gamma * V(next)``, and ``r`` alone where the rules ended the episode. No gradient flows into it.

    Args:
        reward: (N,) reward of each action token.
        next_value: (N,) value of the state in which the policy acts next.
        terminated: (N,) bool. Only this makes the value beyond zero; a truncated episode has one.
        gamma: discount per action token.

    Returns:
        (N,) target.
    """
    return reward + gamma * torch.where(terminated, 0.0, next_value.detach())


class MCLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens; `loss` is what is minimised."""

    loss: Tensor
    q_loss: Tensor
    cql_loss: Tensor
    q_mean: Tensor


def mc_loss(q: TokenScores, return_to_go: Tensor, *, cql_weight: float) -> MCLoss:
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
