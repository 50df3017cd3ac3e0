"""Q-SFT: the probabilities of a second language model are values (Hong et al. 2024, arXiv 2411.05193).

Returns are scaled to [0, 1] by ``Q = low + (high - low) Q'``. The model learns a distribution p over the K tokens that
can be sampled, and ``Q' = p / pi_beta``.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lmrl.losses.returns import td_target
from lmrl.losses.token_scores import LinearScores, RowScores, Scores, gather_token_scores

__all__ = [
    "QSFTLoss",
    "TokenNLL",
    "best_ratio",
    "mask_scores",
    "probability_ratio",
    "qsft_loss",
    "qsft_weight",
    "token_nll",
]

_MAX_TABLE_SCORES = 2**24  # scores of all words that are computed at once


class QSFTLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens; `loss` is what is minimised."""

    loss: Tensor
    target: Tensor
    """The target of Q, in units of the return."""
    q_mean: Tensor
    """Q of the tokens taken, in units of the return."""
    cut: Tensor
    """Share of the targets outside of the range of returns."""
    bc_loss: Tensor
    """``-log pi_beta`` of the tokens."""


def mask_scores(scores: Scores, invalid: Tensor) -> Scores:
    """The logits with ``-inf`` for words that are never sampled.

    Args:
        scores: (S, vocabulary) logits.
        invalid: (vocabulary,) bool.
    """
    if isinstance(scores, RowScores):
        compute = scores.compute
        return scores._replace(compute=lambda *inputs: compute(*inputs).masked_fill(invalid, -torch.inf))
    if isinstance(scores, LinearScores) and scores.cap is not None:
        # No bias gives -inf behind a soft cap, so the table is needed.
        scores = scores.table(slice(None))
    if isinstance(scores, Tensor):
        return scores.masked_fill(invalid, -torch.inf)
    # With the factors of a table, mask the bias alone, so that no table is made.
    bias = scores.weight.new_zeros(len(invalid)) if scores.bias is None else scores.bias
    return scores._replace(bias=bias.masked_fill(invalid, -torch.inf))


def probability_ratio(scores: Tensor, base: Tensor, support: float) -> Tensor:
    """``Q' = p(a) / pi_beta(a)``, at most 1, for the tokens of the support; 0 for the others.

    Args:
        scores: (n, vocabulary) logits of p, ``-inf`` for words that are never sampled.
        base: (n, vocabulary) logits of pi_beta, masked in the same way.
        support: the tokens that pi_beta gives at least this probability, and its most probable one.

    Returns:
        (n, vocabulary) float32 in [0, 1].
    """
    logprobs = base.float().log_softmax(-1)
    probabilities = logprobs.exp()
    # The most probable token is always in the support, so that every state has a best token.
    likely = (probabilities > 0) & (probabilities >= probabilities.amax(-1, keepdim=True).clamp(max=support))
    # Returns are at most 1 in this scale; a larger ratio is an error of estimation.
    ratio = (scores.float().log_softmax(-1) - logprobs).exp().clamp(max=1.0)
    return torch.where(likely, ratio, 0.0)


@torch.no_grad()
def best_ratio(scores: Scores, base: Scores, support: float) -> Tensor:
    """(S,) ``max_a Q'(a)`` over the support; for a large vocabulary it is computed for some states at a time.

    Args:
        scores: (S, vocabulary) logits of p, masked by `mask_scores`.
        base: logits of pi_beta, masked in the same way.
        support: see `probability_ratio`.
    """
    num_states, num_words = _shape(scores)
    step = max(1, _MAX_TABLE_SCORES // num_words)
    best = []
    for first in range(0, num_states, step):
        rows = slice(first, first + step)
        best.append(probability_ratio(_table(scores, rows), _table(base, rows), support).amax(-1))
    return torch.cat(best) if best else torch.zeros(0)


def _shape(scores: Scores) -> tuple[int, int]:
    """Return the number of states and the number of words."""
    if isinstance(scores, Tensor):
        return scores.shape[0], scores.shape[1]
    if isinstance(scores, RowScores):
        return scores.inputs[0].shape[0], scores.vocabulary
    return scores.hidden.shape[0], scores.weight.shape[0]


def _table(scores: Scores, rows: slice) -> Tensor:
    return scores[rows] if isinstance(scores, Tensor) else scores.table(rows)


def qsft_weight(
    reward: Tensor, next_ratio: Tensor, terminated: Tensor, *, gamma: float, low: Tensor, high: Tensor
) -> Tensor:
    """``w = (y - low) / (high - low)`` with ``y = r + gamma * (low + (high - low) max_a' Q'(s', a'))``, not clipped.

    Args:
        reward: (N,).
        next_ratio: (N,) the largest Q' of the state in which the policy acts next.
        terminated: (N,) bool; ``y = r`` there.
        gamma: discount per action token.
        low: () lowest return.
        high: () highest return.
    """
    return (td_target(reward, low + (high - low) * next_ratio, terminated, gamma) - low) / (high - low)


class TokenNLL(NamedTuple):
    """The negative log-likelihood of each action token under p."""

    own: Tensor
    """(N,) ``-log p`` of the token."""
    others: Tensor
    """(N,) the mean of ``-log p`` over the K - 1 other tokens that can be sampled."""


def token_nll(scores: Scores, state: Tensor, token: Tensor, invalid: Tensor) -> TokenNLL:
    """Look up the action tokens.

    Args:
        scores: (S, vocabulary) logits of p, not masked.
        state: (N,) index of the state of each token.
        token: (N,) its id, one that can be sampled.
        invalid: (vocabulary,) bool, words that are never sampled.
    """
    if isinstance(scores, RowScores) or (isinstance(scores, LinearScores) and scores.cap is not None):
        scores = scores.table(slice(None))  # the sum below is one of products only without a soft cap
    taken = gather_token_scores(mask_scores(scores, invalid), state, token)
    valid = ~invalid
    count = valid.sum()  # K
    # (S,) the sum of all valid logits. With the factors of a table, it is a product with the sum of the weights.
    if isinstance(scores, Tensor):
        total = scores.float().masked_fill(invalid, 0.0).sum(-1)
    else:
        total = scores.hidden.float() @ scores.weight[valid].float().sum(0)
        total = total if scores.bias is None else total + scores.bias[valid].float().sum()
    # (N,) -sum log p over all K words = K logsumexp - sum of the logits, where logsumexp = nll + score.
    all_nll = count * (taken.nll + taken.score) - total.index_select(0, state)
    return TokenNLL(taken.nll, (all_nll - taken.nll) / (count - 1))


def qsft_loss(
    p: TokenNLL, base_nll: Tensor, weight: Tensor, *, low: Tensor, high: Tensor, bc_weight: float = 0.0
) -> QSFTLoss:
    """``-(w log p(a) + (1 - w) / (K - 1) * sum over a' != a of log p(a'))``, a mean over tokens; w clipped to [0, 1].

    Its minimiser, where the data say a with probability pi(a) and the mean of w is W(a), is ``p(a) = pi(a) W(a) +
    sum over b != a of pi(b) (1 - W(b)) / (K - 1)``: the second term is what the spread adds.

    Args:
        p: negative log-likelihoods under the model that learns.
        base_nll: (N,) ``-log pi_beta`` of the tokens.
        weight: (N,) weights w from `qsft_weight`, not clipped.
        low: () lowest return.
        high: () highest return.
        bc_weight: weight of ``-log pi_beta``, which is added.
    """
    n = max(1, weight.numel())
    # The weight is a target: no gradient flows through the target model's ratios.
    wanted = weight.detach()
    w = wanted.clamp(0.0, 1.0)
    # p / pi_beta of the token taken, which is Q' for the log.
    ratio = (base_nll - p.own).detach().exp().clamp(max=1.0)
    bc_loss = base_nll.sum() / n
    return QSFTLoss(
        loss=(w * p.own + (1.0 - w) * p.others).sum() / n + bc_weight * bc_loss,
        target=(low + (high - low) * wanted).sum() / n,
        q_mean=(low + (high - low) * ratio).sum() / n,
        cut=(wanted != w).sum() / n,
        bc_loss=bc_loss,
    )
