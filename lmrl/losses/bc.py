"""Behavioural cloning: say what the data says."""

from typing import NamedTuple

from torch import Tensor

from lmrl.losses.gather import taken

__all__ = ["BCLoss", "bc_loss"]


class BCLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens."""

    loss: Tensor


def bc_loss(logits: Tensor, state: Tensor, token: Tensor) -> BCLoss:
    """Mean negative log-likelihood of the action tokens (words of the environment are not imitated).

    Args:
        logits: (S, vocabulary) at the distinct states.
        state: (N,) index of the state of each action token.
        token: (N,) its id.

    Returns:
        The mean over N, zero (with a gradient of zero) where N is zero.
    """
    return BCLoss(loss=taken(logits, state, token).nll.sum() / max(1, token.numel()))
