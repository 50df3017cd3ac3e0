"""Proximal policy optimisation (Schulman et al. 2017), token by token."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Experience", "PPOLoss", "Spoken", "ppo_loss", "spoken"]


class Experience(NamedTuple):
    """What is known of N action tokens from the time they were sampled, (N,) float32 each."""

    logprob: Tensor
    """Under the very distribution that they were sampled from."""
    value: Tensor
    """V of the states in which they were chosen."""
    advantage: Tensor
    """Whitened over the round."""
    target: Tensor
    """Of V: advantage before whitening, plus value."""


class Spoken(NamedTuple):
    """What a policy says now about tokens that were taken, (N,) float32 each."""

    logprob: Tensor
    entropy: Tensor
    """Of the whole distribution that the token was drawn from, in nats."""


class PPOLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens; `loss` is what is minimised. Names are CleanRL's."""

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    """``mean(ratio - 1 - log ratio)``: how far the policy has moved since the round was played."""
    clipfrac: Tensor
    """Share of the tokens whose ratio is outside of the clipping range."""
    ratio: Tensor
    """The one that is farthest from 1: in the first minibatch of a round all are 1."""


def spoken(logits: Tensor, state: Tensor, token: Tensor, invalid: Tensor) -> Spoken:
    """Log-probabilities and entropies at temperature 1 among the tokens that may be said.

    Args:
        logits: (S, vocabulary) at the distinct states.
        state: (N,) index of the state of each action token.
        token: (N,) its id.
        invalid: (vocabulary,) bool, ids that are never sampled.
    """
    logprobs = logits.float().masked_fill(invalid, -torch.inf).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs.masked_fill(invalid, 0.0)).sum(-1)
    chosen = logprobs.reshape(-1).index_select(0, state * logprobs.shape[-1] + token)
    return Spoken(chosen, entropy.index_select(0, state))


def ppo_loss(
    now: Spoken,
    value: Tensor,
    old: Experience,
    *,
    clip: float,
    value_clip: float | None,
    value_weight: float,
    entropy_weight: float = 0.0,
) -> PPOLoss:
    """Clipped policy loss plus ``value_weight`` times the clipped value loss, minus ``entropy_weight`` times entropy.

    ``L_pg = mean max(-A rho, -A clip(rho, 1 - clip, 1 + clip))`` with ``rho = pi(u) / pi_old(u)``, and
    ``L_v = 1/2 mean max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2)``.

    Args:
        now: of the policy that is being trained.
        value: (N,) its V.
        old: from the time of sampling.
        clip: how far the ratio may pay to move from 1.
        value_clip: likewise for V and its old value; None does not clip.
        value_weight: weight of the value loss.
        entropy_weight: weight of the entropy bonus; 0 as published.
    """
    count = max(1, value.numel())
    log_ratio = now.logprob - old.logprob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    policy_loss = torch.maximum(-old.advantage * ratio, -old.advantage * clipped).sum() / count
    error = (value - old.target).square()
    if value_clip is not None:
        near = torch.clamp(value, old.value - value_clip, old.value + value_clip)
        error = torch.maximum(error, (near - old.target).square())
    value_loss = 0.5 * error.sum() / count
    entropy = now.entropy.sum() / count
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).sum() / count
        clipfrac = ((ratio - 1.0).abs() > clip).sum() / count
        farthest = ratio[log_ratio.abs().argmax()] if len(ratio) else torch.ones(())
    loss = policy_loss + value_weight * value_loss - entropy_weight * entropy
    return PPOLoss(loss, policy_loss, value_loss, entropy, approx_kl, clipfrac, farthest)
