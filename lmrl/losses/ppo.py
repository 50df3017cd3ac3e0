"""Proximal policy optimisation (Schulman et al. 2017): generalised advantages, the clipped losses of policy and V."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lmrl.losses.policy_gradient import TokenLogprobs, clipped_policy_loss, first_of_turn

__all__ = ["Experience", "PPOLoss", "explained_variance", "gae", "ppo_loss"]


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
    rewards = np.asarray(rewards, dtype=np.float64)
    values = np.asarray(values, dtype=np.float64)
    advantages = np.empty_like(values)
    following = float(end_value)
    tail = 0.0
    for step in range(len(rewards) - 1, -1, -1):
        tail = rewards[step] + gamma * following - values[step] + gamma * gae_lambda * tail
        advantages[step], following = tail, values[step]
    return advantages


def explained_variance(values: ArrayLike, targets: ArrayLike) -> float:
    """``1 - Var(targets - values) / Var(targets)``: 1 is perfect, 0 no better than a constant; NaN without variance."""
    values = np.asarray(values, dtype=np.float64)
    targets = np.asarray(targets, dtype=np.float64)
    variance = float(targets.var()) if targets.size else 0.0
    return 1.0 - float((targets - values).var()) / variance if variance > 0.0 else float("nan")


class Experience(NamedTuple):
    """What is known of N action tokens from the time they were sampled, (N,) float32 each: the columns of a rollout."""

    logprob: Tensor
    """Under the very distribution that they were sampled from."""
    value: Tensor
    """V of the states in which they were chosen, or in which their action began."""
    advantage: Tensor
    """Whitened over the round."""
    target: Tensor
    """Of V: advantage before whitening, plus value."""
    weight: Tensor | None = None
    """See `lmrl.losses.loss_weights`; None: 1."""
    importance: Tensor | None = None
    """Of the policy loss alone, see `lmrl.losses.importance_weights`; None: 1."""


class PPOLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens; `loss` is what is minimised. Names are CleanRL's."""

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    """See `lmrl.losses.PolicyTerms`, as of the next four."""
    clipfrac: Tensor
    clip_ratio_low: Tensor
    clip_ratio_high: Tensor
    ratio: Tensor


def ppo_loss(
    now: TokenLogprobs,
    value: Tensor,
    old: Experience,
    *,
    clip: float,
    value_clip: float | None,
    value_weight: float,
    entropy_weight: float = 0.0,
    clip_high: float | None = None,
    turn_end: Tensor | None = None,
) -> PPOLoss:
    """Clipped policy loss plus ``value_weight`` times the clipped value loss, minus ``entropy_weight`` times entropy.

    `clipped_policy_loss`, and ``L_v = 1/2 mean w max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) -
    R)^2)``.

    Args:
        now: of the policy that is being trained.
        value: (N,) its V.
        old: from the time of sampling.
        clip: how far the ratio may pay to move from 1.
        value_clip: likewise for V and its old value; None does not clip.
        value_weight: weight of the value loss.
        entropy_weight: weight of the entropy bonus; 0 as published.
        clip_high: see `clipped_policy_loss`.
        turn_end: (N,) bool, the last token of each action: ratios are those of whole actions, and V is that of the
            state in which an action begins; None: ratios and values of tokens.
    """
    count = max(1, value.numel())
    if turn_end is not None:
        value = first_of_turn(value, turn_end)
    terms = clipped_policy_loss(
        now,
        old.logprob,
        old.advantage,
        clip=clip,
        clip_high=clip_high,
        weight=old.weight,
        turn_end=turn_end,
        importance=old.importance,
    )
    error = (value - old.target).square()
    if value_clip is not None:
        near = torch.clamp(value, old.value - value_clip, old.value + value_clip)
        error = torch.maximum(error, (near - old.target).square())
    value_loss = 0.5 * (error if old.weight is None else error * old.weight).sum() / count
    loss = terms.policy_loss + value_weight * value_loss - entropy_weight * terms.entropy
    policy_loss, *others = terms
    return PPOLoss(loss, policy_loss, value_loss, *others)
