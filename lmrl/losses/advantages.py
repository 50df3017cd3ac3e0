"""Advantages of sampled actions, as vectors over the action tokens of whole episodes or of a whole round."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["explained_variance", "gae", "whiten"]


def gae(
    rewards: ArrayLike, values: ArrayLike, end_value: float, gamma: float, gae_lambda: float
) -> NDArray[np.float64]:
    """Generalised advantage estimates over the action tokens of one episode (Schulman et al. 2016, equation 16).

    ``delta_k = r_k + gamma * V_{k+1} - V_k`` and ``A_k = delta_k + gamma * lambda * A_{k+1}``. What the environment
    says between two turns is no step: the state after a turn's last token is that of the next turn's first.

    Args:
        rewards: (T,) one per action token.
        values: (T,) V of the states in which the tokens were chosen.
        end_value: V of the state after the last observation; 0 if the rules ended the episode.
        gamma: discount per action token.
        gae_lambda: 0 trusts V after one token, 1 trusts the rewards alone.

    Returns:
        (T,) float64; ``A + values`` are the targets of V.
    """
    rewards, values = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    advantages = np.empty_like(values)
    following, tail = float(end_value), 0.0
    for step in range(len(rewards) - 1, -1, -1):
        tail = rewards[step] + gamma * following - values[step] + gamma * gae_lambda * tail
        advantages[step], following = tail, values[step]
    return advantages


def whiten(advantages: ArrayLike, epsilon: float = 1e-8) -> NDArray[np.float64]:
    """Shift and scale to mean 0 and population variance 1, over all action tokens of a round."""
    advantages = np.asarray(advantages, dtype=np.float64)
    if not advantages.size:
        return advantages
    whitened: NDArray[np.float64] = (advantages - advantages.mean()) / np.sqrt(advantages.var() + epsilon)
    return whitened


def explained_variance(values: ArrayLike, targets: ArrayLike) -> float:
    """``1 - Var(targets - values) / Var(targets)``: 1 is perfect, 0 no better than a constant; NaN without variance."""
    values, targets = np.asarray(values, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    variance = float(targets.var()) if targets.size else 0.0
    return 1.0 - float((targets - values).var()) / variance if variance > 0.0 else float("nan")
