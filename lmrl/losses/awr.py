"""Advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from lmrl.losses.ilql import expectile_loss

__all__ = ["AWRLoss", "advantage_weights", "awr_loss"]


class AWRLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens but `weight_max`; `loss` is what is minimised."""

    loss: Tensor
    actor_loss: Tensor
    v_loss: Tensor
    v_mean: Tensor
    advantage: Tensor
    weight_mean: Tensor
    weight_max: Tensor
    """The largest weight of a token; of several processes or batches together the mean of theirs is logged."""


def advantage_weights(advantage: Tensor, temperature: float, max_weight: float) -> Tensor:
    """``min(exp(A / temperature), max_weight)``, element by element (Peng et al. 2019, equation 5 and section 3.2).

    No gradient flows into the advantages.
    """
    # The logarithm is clipped, so that nothing overflows.
    return (advantage.detach() / temperature).clamp(max=math.log(max_weight)).exp()


def awr_loss(
    nll: Tensor, value: Tensor, target: Tensor, *, temperature: float, max_weight: float, expectile: float = 0.5
) -> AWRLoss:
    """``mean(w nll) + mean(L(V, G))`` with ``w = min(exp((G - V) / temperature), max_weight)``.

    L is ``1/2 (V - G)^2``, and with another expectile than 0.5 twice its loss (`lmrl.losses.ilql.expectile_loss`).

    Args:
        nll: (N,) negative log-likelihood of each action token.
        value: (N,) V of the states in which they were chosen.
        target: (N,) target of V: discounted return from each action token to the end of its episode, or the reward
            and the discounted V of where the policy acts next.
        temperature: how much better an action must be to count e times as much.
        max_weight: upper limit of a token's weight.
        expectile: in [0.5, 1); how optimistic V is.
    """
    count = max(1, nll.numel())
    advantage = (target - value).detach()
    weight = advantage_weights(advantage, temperature, max_weight)
    actor_loss = (weight * nll).sum() / count
    # Twice the expectile loss, so that 0.5 is the plain squared error with its factor 1/2.
    v_loss = 2.0 * expectile_loss(value, target, expectile).sum() / count
    return AWRLoss(
        loss=actor_loss + v_loss,
        actor_loss=actor_loss,
        v_loss=v_loss,
        v_mean=value.sum() / count,
        advantage=advantage.sum() / count,
        weight_mean=weight.sum() / count,
        weight_max=weight.max() if len(weight) else torch.zeros_like(actor_loss),
    )
