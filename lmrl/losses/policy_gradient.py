"""Parts that PPO and the algorithms without a critic share: ratios, clipping, KL penalties and averaging.

Names are those of TRL and verl where they have one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lmrl.errors import UserError, check_range, unknown
from lmrl.losses.token_scores import Scores

__all__ = [
    "KL_ESTIMATORS",
    "LOSS_AGG_MODES",
    "KLController",
    "PolicyTerms",
    "TokenLogprobs",
    "clipped_policy_loss",
    "first_of_turn",
    "importance_weights",
    "k3",
    "kl_penalty",
    "loss_weights",
    "sum_over_turn",
    "token_logprobs",
    "whiten",
    "with_kl_penalty",
]

KL_ESTIMATORS = ("k1", "k2", "k3")
"""Schulman 2020, "Approximating KL divergence"."""

LOSS_AGG_MODES = ("token-mean", "turn-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-turn-sum")
"""Values of verl's ``loss_agg_mode``, where a sequence is an episode, and two for turns."""


def with_kl_penalty(
    rewards: ArrayLike, logprob: ArrayLike, ref_logprob: ArrayLike, kl_weight: float
) -> NDArray[np.float64]:
    """``r_k - kl_weight * (log pi(u_k) - log pi_ref(u_k))``, per action token (Ziegler et al. 2019, section 2.1).

    Args:
        rewards: (T,) of the environment.
        logprob: (T,) under the policy that sampled.
        ref_logprob: (T,) under the frozen reference model.
        kl_weight: KL penalty coefficient.
    """
    ratio = np.asarray(logprob, dtype=np.float64) - np.asarray(ref_logprob, dtype=np.float64)
    return np.asarray(rewards, dtype=np.float64) - kl_weight * ratio


def k3(log_ratio: ArrayLike) -> NDArray[np.float64]:
    """``e^x - 1 - x``, never negative (Schulman 2020, "Approximating KL divergence").

    With ``x = log pi_ref(u) - log pi(u)`` of tokens that ``pi`` sampled, its mean estimates ``KL(pi, pi_ref)``
    without bias; with the opposite sign, as in the reference implementation, it does not.
    """
    log_ratio = np.asarray(log_ratio, dtype=np.float64)
    estimate: NDArray[np.float64] = np.expm1(log_ratio) - log_ratio
    return estimate


def kl_penalty(logprob: Tensor, ref_logprob: Tensor, kind: str) -> Tensor:
    """(N,) an estimate of ``KL(pi, pi_ref)`` by each token that ``pi`` sampled, with a gradient.

    ``k1 = log pi - log pi_ref``, ``k2 = k1^2 / 2``, ``k3 = e^-k1 - 1 + k1``. As terms of a loss they differ: the
    gradient of k2 is that of the KL, in expectation; that of k3 is it near ``pi = pi_ref``; that of k1 is nothing but
    noise, so that k1 belongs into rewards.

    Args:
        logprob: (N,) of the policy that is being trained.
        ref_logprob: (N,) of the reference model.
        kind: one of `KL_ESTIMATORS`.
    """
    log_ratio = logprob - ref_logprob
    if kind == "k1":
        return log_ratio
    return 0.5 * log_ratio.square() if kind == "k2" else torch.expm1(-log_ratio) + log_ratio


@dataclass(frozen=True, slots=True)
class KLController:
    """The KL penalty coefficient: fixed, or moved so that the KL nears a target (Ziegler et al. 2019, section 2.2).

    Raises:
        UserError: only one of ``target`` and ``horizon``, or one that is not positive.
    """

    target: float | None = None
    """Mean KL per action token to be held; None keeps the coefficient."""
    horizon: float | None = None
    """How many samples it takes to change the coefficient by a factor of about e."""

    def __post_init__(self) -> None:
        given = [value for value in (self.target, self.horizon) if value is not None]
        check_range("(0, inf)", kl_target=self.target, kl_horizon=self.horizon)
        if len(given) == 1:
            raise UserError(
                f"kl_target and kl_horizon must both be given or both be left out, got {self.target}, {self.horizon}"
            )

    def after(self, kl_weight: float, kl: float, samples: int) -> float:
        """Return the coefficient after a round with this number of samples and this mean KL."""
        if self.target is None or self.horizon is None:
            return kl_weight
        error = min(0.2, max(-0.2, kl / self.target - 1.0))
        return kl_weight * (1.0 + error * samples / self.horizon)


def whiten(advantages: ArrayLike, epsilon: float = 1e-8) -> NDArray[np.float64]:
    """Shift and scale to mean 0 and population variance 1, over all entries of a round."""
    advantages = np.asarray(advantages, dtype=np.float64)
    if not advantages.size:
        return advantages
    whitened: NDArray[np.float64] = (advantages - advantages.mean()) / np.sqrt(advantages.var() + epsilon)
    return whitened


def loss_weights(turn_lengths: Sequence[ArrayLike], loss_agg_mode: str) -> NDArray[np.float64]:
    """(N,) how much each action token of a round counts, so that the mean of weight times loss is what is asked for.

    - ``token-mean``: the mean over all tokens. A round of longer episodes divides by more.
    - ``turn-mean``: the mean over turns, of the mean over each turn's tokens.
    - ``seq-mean-token-sum``: the mean over episodes, of the sum over each one's tokens: a constant divides, as in the
      policy gradient itself (and in Dr. GRPO, up to that constant).
    - ``seq-mean-turn-sum``: the mean over episodes, of the sum over turns, of the mean over each turn's tokens.
    - ``seq-mean-token-mean``: the mean over episodes, of the mean over each one's tokens (GRPO as published): a token
      of a long episode counts less.

    Args:
        turn_lengths: of each episode, the number of tokens of each action.
        loss_agg_mode: one of `LOSS_AGG_MODES`.

    Raises:
        UserError: for another mode.
    """
    if loss_agg_mode not in LOSS_AGG_MODES:
        raise unknown("loss_agg_mode", loss_agg_mode, LOSS_AGG_MODES)
    by_episode = [np.asarray(lengths, dtype=np.int64) for lengths in turn_lengths]
    turns = np.concatenate([*by_episode, np.zeros(0, dtype=np.int64)])
    episodes = np.asarray([lengths.sum() for lengths in by_episode], dtype=np.int64)
    count = int(turns.sum())
    share = {
        "token-mean": np.full(count, 1.0 / max(1, count)),
        "turn-mean": np.repeat(1.0 / (turns * len(turns)), turns),
        "seq-mean-token-sum": np.full(count, 1.0 / max(1, len(episodes))),
        "seq-mean-token-mean": np.repeat(1.0 / (np.maximum(1, episodes) * len(episodes)), episodes),
        "seq-mean-turn-sum": np.repeat(1.0 / (turns * max(1, len(episodes))), turns),
    }
    return count * share[loss_agg_mode]


def importance_weights(
    logprob: ArrayLike, sampler_logprob: ArrayLike, cap: float, lengths: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """``min(pi(u) / mu(u), cap)``: how much what another sampler ``mu`` drew counts for the policy ``pi`` itself.

    Truncated importance sampling (Ionides 2008), of tokens as Yao et al. 2025, "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training", correct a sampler whose numbers differ a little. It is TRL's
    ``vllm_importance_sampling_mode="token_truncate"``, and the cap its ``vllm_importance_sampling_clip_max``.

    Args:
        logprob: (N,) of the tokens under the policy that is trained, when they were drawn.
        sampler_logprob: (N,) as the sampler told it.
        cap: the largest weight; the variance of the loss stays bounded, at the price of a bias.
        lengths: of the actions, where ratios are those of whole actions: tokens of an action share one weight.
    """
    log_ratio = np.asarray(logprob, dtype=np.float64) - np.asarray(sampler_logprob, dtype=np.float64)
    if lengths is not None and len(log_ratio):
        every = np.asarray(lengths, dtype=np.int64)
        log_ratio = np.repeat(np.add.reduceat(log_ratio, np.cumsum(every) - every), every)
    weights: NDArray[np.float64] = np.exp(np.minimum(log_ratio, np.log(cap)))
    return weights


class TokenLogprobs(NamedTuple):
    """The current policy's log-probs of N action tokens, (N,) float32 each."""

    logprob: Tensor
    entropy: Tensor
    """Of the whole distribution that the token was drawn from, in nats."""


def token_logprobs(logits: Scores, state: Tensor, token: Tensor, invalid: Tensor) -> TokenLogprobs:
    """Log-probabilities and entropies at temperature 1 among the tokens that may be said.

    Args:
        logits: (S, vocabulary) at the distinct states.
        state: (N,) index of the state of each action token.
        token: (N,) its id.
        invalid: (vocabulary,) bool, ids that are never sampled.
    """
    if not isinstance(logits, Tensor):
        score, total, entropy = logits.distribution(state, token, invalid)
        return TokenLogprobs(score - total.index_select(0, state), entropy.index_select(0, state))
    logprobs = logits.float().masked_fill(invalid, -torch.inf).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs.masked_fill(invalid, 0.0)).sum(-1)
    chosen = logprobs.reshape(-1).index_select(0, state * logprobs.shape[-1] + token)
    return TokenLogprobs(chosen, entropy.index_select(0, state))


def _turns(turn_end: Tensor) -> Tensor:
    """(N,) number of the turn of each token; tokens of an action stand side by side."""
    ends = turn_end.long()
    return ends.cumsum(0) - ends


def sum_over_turn(values: Tensor, turn_end: Tensor) -> Tensor:
    """(N,) for each token the sum over all tokens of its action.

    Args:
        values: (N,).
        turn_end: (N,) bool, the last token of each action.
    """
    turn = _turns(turn_end)
    return torch.zeros_like(values).index_add(0, turn, values).index_select(0, turn)


def first_of_turn(values: Tensor, turn_end: Tensor) -> Tensor:
    """(N,) for each token the entry of the first token of its action; arguments as of `sum_over_turn`."""
    first = torch.cat([turn_end.new_ones(1), turn_end[:-1]])[: len(turn_end)]
    return values[first.nonzero().squeeze(-1)].index_select(0, _turns(turn_end))


class PolicyTerms(NamedTuple):
    """Terms of a clipped policy loss, each a mean over the action tokens. Names are CleanRL's, or said to be TRL's."""

    policy_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    """``mean(ratio - 1 - log ratio)``: how far the policy has moved since the round was played."""
    clipfrac: Tensor
    """Share of the tokens whose ratio is outside of the clipping range."""
    clip_ratio_low: Tensor
    """TRL's ``clip_ratio/low_mean``: share of those that lose their gradient below it, with advantages below 0."""
    clip_ratio_high: Tensor
    """TRL's ``clip_ratio/high_mean``: above it, with advantages above 0."""
    ratio: Tensor
    """The one that is farthest from 1: in the first minibatch of a round all are 1."""


def clipped_policy_loss(
    now: TokenLogprobs,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    clip: float,
    clip_high: float | None = None,
    weight: Tensor | None = None,
    turn_end: Tensor | None = None,
    importance: Tensor | None = None,
) -> PolicyTerms:
    """``mean w c max(-A rho, -A clip(rho, 1 - clip, 1 + clip_high))`` with ``rho = pi(u) / pi_old(u)``.

    Args:
        now: of the policy that is being trained.
        old_logprob: (N,) from the time of sampling.
        advantage: (N,).
        clip: how far the ratio may pay to move from 1.
        clip_high: likewise upwards, if that is another number (Yu et al. 2025, DAPO).
        weight: (N,) see `loss_weights`; None: 1.
        turn_end: (N,) bool, the last token of each action: the ratio is that of the whole action; None: of the token.
        importance: (N,) c, see `importance_weights`, constant while a round is learned from; None: 1.
    """
    count = max(1, advantage.numel())
    log_ratio = now.logprob - old_logprob
    if turn_end is not None:
        log_ratio = sum_over_turn(log_ratio, turn_end)
    ratio = log_ratio.exp()
    high = clip if clip_high is None else clip_high
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1.0 - clip, 1.0 + high))
    for factor in (weight, importance):
        loss = loss if factor is None else loss * factor
    policy_loss = loss.sum() / count
    entropy = now.entropy.sum() / count
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).sum() / count
        below = ratio < 1.0 - clip
        above = ratio > 1.0 + high
        clipfrac = (below | above).sum() / count
        low = (below & (advantage < 0.0)).sum() / count
        up = (above & (advantage > 0.0)).sum() / count
        farthest = ratio[log_ratio.abs().argmax()] if len(ratio) else torch.ones(())
    return PolicyTerms(policy_loss, entropy, approx_kl, clipfrac, low, up, farthest)
