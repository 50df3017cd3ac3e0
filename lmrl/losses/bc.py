"""Behavioural cloning: maximise the likelihood of the data's actions."""

from typing import NamedTuple

import torch
from torch import Tensor

from lmrl.losses.token_scores import Scores, gather_token_scores

__all__ = ["BCLoss", "bc_loss"]


class BCLoss(NamedTuple):
    """Terms of the loss; `loss` is what is minimised."""

    loss: Tensor
    """The mean over the action tokens, unless observation tokens count too."""
    nll: Tensor | None = None
    """Mean over the action tokens."""
    read_nll: Tensor | None = None
    """Mean over the observation tokens."""


def bc_loss(
    logits: Scores,
    state: Tensor,
    token: Tensor,
    observation_state: Tensor | None = None,
    observation_token: Tensor | None = None,
    observation_loss_weight: float = 0.0,
) -> BCLoss:
    """Mean negative log-likelihood of the action tokens, plus a weight times that of the observation tokens.

    Args:
        logits: (S, vocabulary) logits at the distinct states.
        state: (N,) index of the state of each action token.
        token: (N,) its id.
        observation_state: (M,) the same for the observation tokens; None leaves them out.
        observation_token: (M,) their ids.
        observation_loss_weight: weight of the observation tokens; 0 imitates actions alone.

    Returns:
        The terms; a mean over no tokens is zero (with a gradient of zero).
    """
    if observation_state is None or observation_token is None:
        return BCLoss(gather_token_scores(logits, state, token).nll.sum() / max(1, token.numel()))
    # One look-up for both kinds of tokens: going over a large vocabulary is what takes the time.
    states = torch.cat([state, observation_state])
    tokens = torch.cat([token, observation_token])
    nlls = gather_token_scores(logits, states, tokens).nll
    nll = nlls[: token.numel()].sum() / max(1, token.numel())
    read_nll = nlls[token.numel() :].sum() / max(1, observation_token.numel())
    return BCLoss(nll + observation_loss_weight * read_nll, nll, read_nll)
