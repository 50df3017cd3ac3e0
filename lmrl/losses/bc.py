"""Behavioural cloning: say what the data says."""

from typing import NamedTuple

from torch import Tensor

from lmrl.losses.gather import taken

__all__ = ["BCLoss", "bc_loss"]


class BCLoss(NamedTuple):
    """Terms of the loss; `loss` is what is minimised."""

    loss: Tensor
    """Without the other two, the mean over the action tokens."""
    nll: Tensor | None = None
    """Mean over the action tokens."""
    read_nll: Tensor | None = None
    """Mean over the tokens that are only read."""


def bc_loss(
    logits: Tensor,
    state: Tensor,
    token: Tensor,
    read_state: Tensor | None = None,
    read_token: Tensor | None = None,
    read_weight: float = 0.0,
) -> BCLoss:
    """Mean negative log-likelihood of the action tokens, plus ``read_weight`` times that of what is only read.

    Args:
        logits: (S, vocabulary) at the distinct states.
        state: (N,) index of the state of each action token.
        token: (N,) its id.
        read_state: (M,) likewise for the tokens that are only read.
        read_token: (M,) their ids.
        read_weight: how much predicting the environment counts; 0 imitates actions alone.

    Returns:
        The terms; a mean over no tokens is zero (with a gradient of zero).
    """
    nll = taken(logits, state, token).nll.sum() / max(1, token.numel())
    if read_state is None or read_token is None:
        return BCLoss(nll)
    read_nll = taken(logits, read_state, read_token).nll.sum() / max(1, read_token.numel())
    return BCLoss(nll + read_weight * read_nll, nll, read_nll)
