"""Group-relative policy optimisation: advantages without a critic, and a clipped loss with a KL penalty.

The returns of episodes that began alike are compared with each other.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lmrl.losses.policy_gradient import PolicyLoss, TokenLogprobs, clipped_or_truncated_loss, kl_penalty

__all__ = ["GROUP_ADVANTAGES", "GRPOColumns", "group_advantages", "group_spreads", "grpo_loss"]

GROUP_ADVANTAGES = ("grpo", "dr_grpo", "rloo")
"""The kinds of `group_advantages`."""

_EPSILON = 1e-6  # added to a standard deviation that divides


def group_advantages(returns: ArrayLike, groups: Sequence[Hashable], kind: str) -> NDArray[np.float64]:
    """The advantage of each of M returns over those of its group.

    - ``grpo``: minus the group's mean, divided by its population standard deviation (Shao et al. 2024, section 4.1.2).
      Groups in which returns hardly differ weigh more than in the policy gradient.
    - ``dr_grpo``: minus the group's mean (Liu et al. 2025): the policy gradient times ``(k - 1) / k``.
    - ``rloo``: minus the mean of the others (Ahmadian et al. 2024): the policy gradient itself, since a baseline that
      does not depend on what it is compared with does not bias it.

    Args:
        returns: (M,).
        groups: (M,) equal for returns that are compared; one that is alone has advantage 0.
        kind: one of `GROUP_ADVANTAGES`.
    """
    centred, index, size = _centred(returns, groups)
    if kind == "dr_grpo":
        return centred
    if kind == "rloo":
        # G - mean of the other k - 1 returns = (G - mean of all k) * k / (k - 1).
        return centred * (size / np.maximum(1, size - 1))[index]
    return centred / (_spreads(centred, index, size) + _EPSILON)[index]


def group_spreads(returns: ArrayLike, groups: Sequence[Hashable]) -> NDArray[np.float64]:
    """The population standard deviation of the returns of each group; for arguments see `group_advantages`."""
    return _spreads(*_centred(returns, groups))


def _centred(
    returns: ArrayLike, groups: Sequence[Hashable]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """(M,) returns less the mean of their group, (M,) index of that group, and the size of each group."""
    returns = np.asarray(returns, dtype=np.float64)
    # Groups are counted in the order in which they first appear.
    index_of_group: dict[Hashable, int] = {}
    index = np.empty(len(groups), dtype=np.int64)
    for position, group in enumerate(groups):
        index[position] = index_of_group.setdefault(group, len(index_of_group))
    size = np.bincount(index)
    mean = np.bincount(index, returns) / size
    return returns - mean[index], index, size


def _spreads(centred: NDArray[np.float64], index: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.float64]:
    spread: NDArray[np.float64] = np.sqrt(np.bincount(index, centred**2) / size)
    return spread


class GRPOColumns(NamedTuple):
    """The columns of a rollout that `grpo_loss` reads, (N,) float32 each."""

    logprob: Tensor
    """Log-probability of the token when it was sampled, or when the round was read again."""
    ref_logprob: Tensor
    """Log-probability of the token under the reference model."""
    advantage: Tensor
    weight: Tensor
    """See `lmrl.losses.loss_weights`."""
    importance: Tensor | None = None
    """A factor of the policy loss alone, see `lmrl.losses.importance_weights`; None: 1."""


def grpo_loss(
    now: TokenLogprobs,
    old: GRPOColumns,
    *,
    clip: float,
    clip_high: float | None,
    kl_weight: Tensor | float | None,
    kl_loss_type: str,
    entropy_weight: float,
    turn_end: Tensor | None = None,
    importance_cap: float | None = None,
) -> PolicyLoss:
    """`clipped_or_truncated_loss` plus ``kl_weight`` times `kl_penalty`, minus ``entropy_weight`` times the entropy.

    This is the negative of the objective of Shao et al. 2024, equation 3, averaged as `loss_weights` says.

    Args:
        now: log-probabilities and entropies under the policy that is being trained.
        old: columns of the rollout, from before the policy learns from it.
        clip: clipping range epsilon: ratios are clipped to [1 - clip, 1 + clip_high].
        clip_high: upper clipping range; None: equal to `clip`.
        kl_weight: weight of the KL penalty; 0 only logs it, for a penalty that is part of the rewards; None: it is not
            computed.
        kl_loss_type: see `kl_penalty`.
        entropy_weight: weight of the entropy bonus.
        turn_end: (N,) bool, the last token of each action: ratios are those of whole actions; None: of tokens.
        importance_cap: take `truncated_policy_loss` with this cap in place of the clipped loss.
    """
    count = max(1, old.advantage.numel())
    terms = clipped_or_truncated_loss(
        now,
        old.logprob,
        old.advantage,
        clip=clip,
        clip_high=clip_high,
        weight=old.weight,
        turn_end=turn_end,
        importance=old.importance,
        importance_cap=importance_cap,
    )
    if kl_weight is None:
        return terms._replace(loss=terms.policy_loss - entropy_weight * terms.entropy)
    kl_loss = (old.weight * kl_penalty(now.logprob, old.ref_logprob, kl_loss_type)).sum() / count
    loss = terms.policy_loss + kl_weight * kl_loss - entropy_weight * terms.entropy
    return terms._replace(loss=loss, kl_loss=kl_loss)
