"""From scores of a whole vocabulary at S states to the N action tokens that were said there."""

from typing import NamedTuple

from torch import Tensor

from lmrl.losses.vocabulary import LinearScores

__all__ = ["Taken", "score_taken", "taken"]


class Taken(NamedTuple):
    """What a table of scores says about the tokens that were taken."""

    score: Tensor
    """(N,) the score of the token."""
    nll: Tensor
    """(N,) cross-entropy of the softmax over all scores: ``logsumexp(scores) - score``."""


def taken(scores: Tensor | LinearScores, state: Tensor, token: Tensor) -> Taken:
    """Look up the tokens that were said.

    Args:
        scores: (S, vocabulary) logits or Q values at the distinct states, or their factors.
        state: (N,) index of the state of each action token.
        token: (N,) its id.

    Returns:
        Score and negative log-likelihood of each token, float32.
    """
    if isinstance(scores, LinearScores):
        score, total = scores.score_and_total(state, token)
    else:
        score, total = score_taken(scores, state, token), scores.float().logsumexp(dim=-1)
    return Taken(score=score, nll=total.index_select(0, state) - score)


def score_taken(scores: Tensor | LinearScores, state: Tensor, token: Tensor) -> Tensor:
    """(N,) the scores of the tokens alone, float32; arguments as of `taken`."""
    if isinstance(scores, LinearScores):
        return scores.score(state, token)
    return scores.reshape(-1).index_select(0, state * scores.shape[-1] + token).float()
