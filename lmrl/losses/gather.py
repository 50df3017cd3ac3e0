"""From scores of a whole vocabulary at S states to the N action tokens that were said there."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["Taken", "taken"]


class Taken(NamedTuple):
    """What a table of scores says about the tokens that were taken."""

    score: Tensor
    """(N,) the score of the token."""
    nll: Tensor
    """(N,) cross-entropy of the softmax over all scores: ``logsumexp(scores) - score``."""


def taken(scores: Tensor, state: Tensor, token: Tensor) -> Taken:
    """Look up the tokens that were said.

    Args:
        scores: (S, vocabulary) logits or Q values at the distinct states.
        state: (N,) index of the state of each action token.
        token: (N,) its id.

    Returns:
        Score and negative log-likelihood of each token, float32.
    """
    scores = scores.float()
    score = scores.reshape(-1).index_select(0, state * scores.shape[-1] + token)
    return Taken(score=score, nll=scores.logsumexp(dim=-1).index_select(0, state) - score)
