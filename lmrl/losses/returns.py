"""Targets of values: returns to the end of the episode, and rewards plus the value of the next state."""

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

__all__ = ["returns_to_go", "td_target"]


def returns_to_go(rewards: ArrayLike, gamma: float, end_value: float = 0.0) -> NDArray[np.float64]:
    """Discounted sum of the rewards from each step to the end: ``G_k = r_k + gamma * G_{k+1}``.

    Args:
        rewards: (T,) one per step (an action token or a turn) of a whole episode.
        gamma: discount per step.
        end_value: value of what follows the last step; 0 counts the rewards alone.

    Returns:
        (T,) float64.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    returns = np.empty_like(rewards)
    # A reverse scan: dividing cumulative products of gamma gives NaN once they underflow.
    tail = float(end_value)
    for step in range(len(rewards) - 1, -1, -1):
        tail = rewards[step] + gamma * tail
        returns[step] = tail
    return returns


def td_target(reward: Tensor, next_value: Tensor, terminated: Tensor, gamma: float) -> Tensor:
    """``r + gamma * V(next)``, and ``r`` alone where the rules ended the episode. No gradient flows into it.

    Args:
        reward: (N,) reward of each step (an action token or a turn).
        next_value: (N,) value of the state in which the policy acts next.
        terminated: (N,) bool. Only this makes the value beyond zero; a truncated episode has one.
        gamma: discount per step.

    Returns:
        (N,) target.
    """
    return reward + gamma * torch.where(terminated, 0.0, next_value.detach())
