"""The loss of algorithms without a critic: clipped ratios, and a KL penalty in the loss."""

from typing import NamedTuple

from torch import Tensor

from lmrl.losses.policy_gradient import TokenLogprobs, clipped_policy_loss, kl_penalty

__all__ = ["GRPOLoss", "Sampled", "grpo_loss"]


class Sampled(NamedTuple):
    """What is known of N action tokens from the time they were sampled, (N,) float32 each: the columns of a rollout."""

    logprob: Tensor
    """Under the very distribution that they were sampled from."""
    ref_logprob: Tensor
    """Under the reference model."""
    advantage: Tensor
    weight: Tensor
    """See `lmrl.losses.loss_weights`."""
    importance: Tensor | None = None
    """Of the policy loss alone, see `lmrl.losses.importance_weights`; None: 1."""


class GRPOLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens; `loss` is what is minimised."""

    loss: Tensor
    policy_loss: Tensor
    kl_loss: Tensor
    entropy: Tensor
    """See `lmrl.losses.PolicyTerms`, as of the next five."""
    approx_kl: Tensor
    clipfrac: Tensor
    clip_ratio_low: Tensor
    clip_ratio_high: Tensor
    ratio: Tensor


def grpo_loss(
    now: TokenLogprobs,
    old: Sampled,
    *,
    clip: float,
    clip_high: float | None,
    kl_weight: Tensor | float,
    kl_loss_type: str,
    entropy_weight: float,
    turn_end: Tensor | None = None,
) -> GRPOLoss:
    """`clipped_policy_loss` plus ``kl_weight`` times `kl_penalty`, minus ``entropy_weight`` times the entropy.

    Args:
        now: of the policy that is being trained.
        old: from the time of sampling.
        clip: how far the ratio may pay to move from 1.
        clip_high: likewise upwards, if that is another number.
        kl_weight: of the KL penalty; 0 where it is part of the rewards.
        kl_loss_type: see `kl_penalty`.
        entropy_weight: weight of the entropy bonus.
        turn_end: (N,) bool, the last token of each action: ratios are those of whole actions; None: of tokens.
    """
    count = max(1, old.advantage.numel())
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
    kl_loss = (old.weight * kl_penalty(now.logprob, old.ref_logprob, kl_loss_type)).sum() / count
    loss = terms.policy_loss + kl_weight * kl_loss - entropy_weight * terms.entropy
    policy_loss, *others = terms
    return GRPOLoss(loss, policy_loss, kl_loss, *others)
