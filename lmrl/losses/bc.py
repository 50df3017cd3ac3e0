"""Behavioural cloning: say what the data says."""

from typing import NamedTuple

import torch
from torch import Tensor

from lmrl.losses.token_scores import LinearScores, taken

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
    logits: Tensor | LinearScores,
    state: Tensor,
    token: Tensor,
    read_state: Tensor | None = None,
    read_token: Tensor | None = None,
    read_weight: float = 0.0,
) -> BCLoss:
    """Mean negative log-likelihood of the action tokens, plus ``read_weight`` times that of what is only read.

    Args:
        logits: (S, vocabulary) at the distinct states, or their factors.
        state: (N,) index of the state of each action token.
        token: (N,) its id.
        read_state: (M,) likewise for the tokens that are only read.
        read_token: (M,) their ids.
        read_weight: how much predicting the environment counts; 0 imitates actions alone.

    Returns:
        The terms; a mean over no tokens is zero (with a gradient of zero).
    """
    if read_state is None or read_token is None:
        return BCLoss(taken(logits, state, token).nll.sum() / max(1, token.numel()))
    # In one look-up: going over a large vocabulary is what takes the time.
    both = taken(logits, torch.cat([state, read_state]), torch.cat([token, read_token])).nll
    nll, read_nll = (part.sum() / max(1, part.numel()) for part in (both[: token.numel()], both[token.numel() :]))
    return BCLoss(nll + read_weight * read_nll, nll, read_nll)
