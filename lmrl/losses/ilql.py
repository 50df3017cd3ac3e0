"""Implicit language Q-learning (Snell et al. 2022, in the form of Abdulhai et al. 2025)."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from lmrl.losses.returns import td_target
from lmrl.losses.token_scores import TokenScores

__all__ = ["ILQLLoss", "expectile_loss", "ilql_loss"]


class ILQLLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens; `loss` is what is minimised."""

    loss: Tensor
    q_loss: Tensor
    v_loss: Tensor
    cql_loss: Tensor
    q_mean: Tensor
    v_mean: Tensor


def expectile_loss(value: Tensor, target: Tensor, expectile: float) -> Tensor:
    """``1/2 |expectile - 1(target < value)| (value - target)^2``, element by element; no gradient into the target.

    Its minimiser is the expectile of the targets: their mean at 0.5, near their maximum at 1 (Kostrikov et al. 2022).
    """
    target = target.detach()
    # The weight is a step function of V and has no gradient.
    weight = torch.where(target >= value.detach(), expectile, 1.0 - expectile)
    return 0.5 * weight * (value - target).square()


def ilql_loss(
    q: Sequence[TokenScores],
    target_q: Sequence[Tensor],
    value: Tensor,
    next_value: Tensor,
    reward: Tensor,
    terminated: Tensor,
    *,
    gamma: float,
    expectile: float,
    cql_weight: float,
) -> ILQLLoss:
    """``sum_i 1/2 (Q_i - y)^2 + L_expectile(V, min_i target Q_i) + cql_weight * sum_i CE(Q_i)``, a mean over tokens.

    ``y = r + gamma * V(next)`` uses the V that is being trained; the target networks serve V's target only.

    Args:
        q: for each head, Q of the tokens taken and the cross-entropy of its softmax, (N,) each.
        target_q: for each head, the target network's Q of the tokens taken, (N,).
        value: (N,) V of the states in which the tokens were chosen.
        next_value: (N,) V of the states in which the policy acts next.
        reward: (N,).
        terminated: (N,) bool; `next_value` is not used there.
        gamma: discount per action token.
        expectile: in [0.5, 1); how optimistic V is about Q.
        cql_weight: weight of the cross-entropy on Q, the conservative term.
    """
    count = max(1, reward.numel())

    # TD loss: both Qs have the same target, with the online V.
    target = td_target(reward, next_value, terminated, gamma)
    q_loss = torch.stack([0.5 * (head.score - target).square().sum() for head in q]).sum() / count

    # Expectile loss: V is an upper expectile of the lower target Q, a maximum over actions of the data.
    min_q = reduce(torch.minimum, target_q)
    v_loss = expectile_loss(value, min_q, expectile).sum() / count

    # Conservative term: -log softmax(Q)[token] keeps Q of tokens that the data lacks down.
    cql_loss = torch.stack([head.nll.sum() for head in q]).sum() / count
    return ILQLLoss(
        loss=q_loss + v_loss + cql_weight * cql_loss,
        q_loss=q_loss,
        v_loss=v_loss,
        cql_loss=cql_loss,
        q_mean=torch.stack([head.score.sum() for head in q]).mean() / count,
        v_mean=value.sum() / count,
    )
