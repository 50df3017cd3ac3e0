"""Advantage-weighted regression (Peng et al. 2019)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

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

    The logarithm is clipped, so that nothing overflows. No gradient flows into the advantages.
    """
    return (advantage.detach() / temperature).clamp(max=math.log(max_weight)).exp()


def awr_loss(nll: Tensor, value: Tensor, return_to_go: Tensor, *, temperature: float, max_weight: float) -> AWRLoss:
    """``mean(w nll) + mean(1/2 (V - G)^2)`` with ``w = min(exp((G - V) / temperature), max_weight)``.

    Args:
        nll: (N,) negative log-likelihood of each action token.
        value: (N,) V of the states in which they were chosen.
        return_to_go: (N,) discounted return from each action token to the end of its episode.
        temperature: how much better an action must be to count e times as much.
        max_weight: of a token.
    """
    count = max(1, nll.numel())
    advantage = return_to_go - value.detach()
    weight = advantage_weights(advantage, temperature, max_weight)
    actor_loss = (weight * nll).sum() / count
    v_loss = 0.5 * (value - return_to_go).square().sum() / count
    v_mean, mean_advantage, weight_mean = (part.sum() / count for part in (value, advantage, weight))
    largest = weight.max() if len(weight) else torch.zeros_like(actor_loss)
    return AWRLoss(actor_loss + v_loss, actor_loss, v_loss, v_mean, mean_advantage, weight_mean, largest)
