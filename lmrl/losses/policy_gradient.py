"""The mathematics of a round of PPO in the order of its steps; GRPO and GiGPO share all but advantages and values.

Rewards with a KL penalty, generalised advantages, weights of tokens, log-probabilities, the clipped losses of policy
and values, and the controller of the KL coefficient. Names are those of TRL, verl and CleanRL where they have one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lmrl.errors import UserError, check_choice, check_range
from lmrl.losses.token_scores import Scores

__all__ = [
    "KL_ESTIMATORS",
    "LOSS_AGG_MODES",
    "BeyondClip",
    "KLController",
    "PPOColumns",
    "PolicyLoss",
    "TokenLogprobs",
    "beyond_clip",
    "clipped_or_truncated_loss",
    "clipped_policy_loss",
    "explained_variance",
    "first_of_turn",
    "gae",
    "importance_weights",
    "k3",
    "kl_penalty",
    "lambda_by_turn",
    "loss_weights",
    "ppo_loss",
    "sum_over_turn",
    "token_logprobs",
    "truncated_policy_loss",
    "turn_index",
    "whiten",
    "with_kl_penalty",
]

Array = TypeVar("Array", Tensor, NDArray[np.float64])

KL_ESTIMATORS = ("k1", "k2", "k3")
"""Schulman 2020, "Approximating KL divergence"."""

LOSS_AGG_MODES = ("token-mean", "turn-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-turn-sum")
"""Values of verl's ``loss_agg_mode``, where a sequence is an episode, and two for turns."""


# -- rewards and advantages of a round -------------------------------------------------------------------------------


def with_kl_penalty(
    rewards: ArrayLike, logprob: ArrayLike, ref_logprob: ArrayLike, kl_weight: float
) -> NDArray[np.float64]:
    """``r_k - kl_weight * (log pi(u_k) - log pi_ref(u_k))``, per action token (Ziegler et al. 2019, equation 2).

    Args:
        rewards: (T,) rewards of the environment.
        logprob: (T,) log-probability of each token under the policy that sampled it.
        ref_logprob: (T,) the same under the frozen reference model.
        kl_weight: KL penalty coefficient.
    """
    log_ratio = np.asarray(logprob, dtype=np.float64) - np.asarray(ref_logprob, dtype=np.float64)
    return np.asarray(rewards, dtype=np.float64) - kl_weight * log_ratio


def gae(
    rewards: ArrayLike, values: ArrayLike, end_value: float, gamma: float, gae_lambda: ArrayLike
) -> NDArray[np.float64]:
    """Generalised advantage estimates over the steps of one episode (Schulman et al. 2016, equation 16).

    ``delta_k = r_k + gamma * V_{k+1} - V_k`` and ``A_k = delta_k + gamma * lambda_k * A_{k+1}``. A step is an action
    token or a turn. The text of the environment between two turns is no step: the state after a turn's last token is
    that of the next turn's first.

    Args:
        rewards: (T,) one per step.
        values: (T,) V of the states in which the steps were chosen.
        end_value: V of the state after the last observation; 0 if the rules ended the episode.
        gamma: discount per step.
        gae_lambda: 0 trusts V after one step, 1 trusts the rewards alone; one number, or (T,) one per step. With
            `lambda_by_turn` each is 1 within a turn.

    Returns:
        (T,) float64; ``A + values`` are the targets of V.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    values = np.asarray(values, dtype=np.float64)
    lambdas = np.broadcast_to(np.asarray(gae_lambda, dtype=np.float64), rewards.shape)
    advantages = np.empty_like(values)
    next_value = float(end_value)
    tail = 0.0
    for step in range(len(rewards) - 1, -1, -1):
        tail = rewards[step] + gamma * next_value - values[step] + gamma * lambdas[step] * tail
        advantages[step] = tail
        next_value = values[step]
    return advantages


def lambda_by_turn(turn_lengths: ArrayLike, gae_lambda: float) -> NDArray[np.float64]:
    """(T,) lambda behind each action token: 1 within a turn, and `gae_lambda` behind its last token.

    With one lambda for all tokens, credit fades with the length of the actions: of a reward n turns of k tokens later
    ``gae_lambda ** (n * k)`` is left, and V has to supply the rest. Here it is ``gae_lambda ** n``.

    Args:
        turn_lengths: number of tokens of each action.
        gae_lambda: lambda from turn to turn.
    """
    lengths = np.asarray(turn_lengths, dtype=np.int64)
    lambdas = np.ones(int(lengths.sum()))
    lambdas[np.cumsum(lengths) - 1] = gae_lambda
    return lambdas


def whiten(advantages: ArrayLike) -> NDArray[np.float64]:
    """Shift and scale to mean 0 and population variance 1, over all entries of a round."""
    advantages = np.asarray(advantages, dtype=np.float64)
    if not advantages.size:
        return advantages
    whitened: NDArray[np.float64] = (advantages - advantages.mean()) / np.sqrt(advantages.var() + 1e-8)
    return whitened


def explained_variance(values: ArrayLike, targets: ArrayLike) -> float:
    """``1 - Var(targets - values) / Var(targets)``: 1 is perfect, 0 no better than a constant; NaN without variance."""
    values = np.asarray(values, dtype=np.float64)
    targets = np.asarray(targets, dtype=np.float64)
    variance = float(targets.var()) if targets.size else 0.0
    return 1.0 - float((targets - values).var()) / variance if variance > 0.0 else float("nan")


# -- how much each token of a round counts ---------------------------------------------------------------------------


def loss_weights(turn_lengths: Sequence[ArrayLike], loss_agg_mode: str) -> NDArray[np.float64]:
    """(N,) how much each action token of a round counts, so that the mean of weight times loss is the wanted mean.

    - ``token-mean``: the mean over all tokens. A round of longer episodes divides by more.
    - ``turn-mean``: the mean over turns, of the mean over each turn's tokens.
    - ``seq-mean-token-sum``: the mean over episodes, of the sum over each one's tokens: a constant divides, as in the
      policy gradient itself (and in Dr. GRPO, up to that constant).
    - ``seq-mean-turn-sum``: the mean over episodes, of the sum over turns, of the mean over each turn's tokens.
    - ``seq-mean-token-mean``: the mean over episodes, of the mean over each one's tokens (GRPO as published): a token
      of a long episode counts less.

    Args:
        turn_lengths: for each episode, the number of tokens of each action.
        loss_agg_mode: one of `LOSS_AGG_MODES`.

    Raises:
        UserError: for another mode.
    """
    check_choice(LOSS_AGG_MODES, loss_agg_mode=loss_agg_mode)
    lengths_by_episode = [np.asarray(lengths, dtype=np.int64) for lengths in turn_lengths]
    turn_tokens = np.concatenate([*lengths_by_episode, np.zeros(0, dtype=np.int64)])  # (turns,)
    episode_tokens = np.asarray([lengths.sum() for lengths in lengths_by_episode], dtype=np.int64)  # (episodes,)
    num_tokens = int(turn_tokens.sum())
    num_turns = len(turn_tokens)
    num_episodes = len(episode_tokens)
    # The share of each token in the mean. Shares are multiplied by N at the end, since the losses divide by N.
    if loss_agg_mode == "token-mean":
        share = np.full(num_tokens, 1.0 / max(1, num_tokens))
    elif loss_agg_mode == "turn-mean":
        share = np.repeat(1.0 / (turn_tokens * num_turns), turn_tokens)
    elif loss_agg_mode == "seq-mean-token-sum":
        share = np.full(num_tokens, 1.0 / max(1, num_episodes))
    elif loss_agg_mode == "seq-mean-token-mean":
        share = np.repeat(1.0 / (np.maximum(1, episode_tokens) * num_episodes), episode_tokens)
    else:  # seq-mean-turn-sum
        share = np.repeat(1.0 / (turn_tokens * max(1, num_episodes)), turn_tokens)
    return num_tokens * share


def importance_weights(
    logprob: ArrayLike, sampler_logprob: ArrayLike, cap: float, lengths: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """``min(pi(u) / mu(u), cap)``: the weight for the policy ``pi`` of a token that another sampler ``mu`` drew.

    Truncated importance sampling (Ionides 2008), of tokens as Yao et al. 2025, "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training", correct a sampler whose numbers differ a little. It is TRL's
    ``vllm_importance_sampling_mode="token_truncate"``, and the cap its ``vllm_importance_sampling_clip_max``.

    Args:
        logprob: (N,) log-probability of each token under the policy that is trained, before it learns from the round.
        sampler_logprob: (N,) the same as the sampler reported it.
        cap: the largest weight; the variance of the loss stays bounded, at the price of a bias.
        lengths: number of tokens of each action: ratios are those of whole actions, whose tokens share one weight;
            None: ratios of tokens.
    """
    log_ratio = np.asarray(logprob, dtype=np.float64) - np.asarray(sampler_logprob, dtype=np.float64)
    if lengths is not None and len(log_ratio):
        action_lengths = np.asarray(lengths, dtype=np.int64)
        starts = np.cumsum(action_lengths) - action_lengths
        log_ratio = np.repeat(np.add.reduceat(log_ratio, starts), action_lengths)
    # Capped before exp, so that nothing overflows.
    weights: NDArray[np.float64] = np.exp(np.minimum(log_ratio, np.log(cap)))
    return weights


class BeyondClip(NamedTuple):
    """The tokens whose ratio has already left the clip range in the direction of the advantage, (N,) bool each."""

    low: Any
    """Below the range, with an advantage below 0."""
    high: Any
    """Above the range, with an advantage above 0."""


def beyond_clip(ratio: Array, advantage: Array, clip: float, clip_high: float | None = None) -> BeyondClip:
    """Find the tokens whose ratio has already left the clip range in the direction of the advantage.

    Args:
        ratio: (N,) ratio of the present policy's probability to that of the policy that sampled.
        advantage: (N,).
        clip: clipping range epsilon: ratios are clipped to [1 - clip, 1 + clip_high].
        clip_high: upper clipping range; None: equal to `clip`.
    """
    upper = clip if clip_high is None else clip_high
    low = (ratio < 1.0 - clip) & (advantage < 0.0)
    high = (ratio > 1.0 + upper) & (advantage > 0.0)
    return BeyondClip(low, high)


# -- the policy as it is now -----------------------------------------------------------------------------------------


class TokenLogprobs(NamedTuple):
    """The current policy's log-probs of N action tokens, (N,) float32 each."""

    logprob: Tensor
    entropy: Tensor
    """The entropy of the whole distribution that the token was drawn from, in nats."""


def token_logprobs(logits: Scores, state: Tensor, token: Tensor, invalid: Tensor) -> TokenLogprobs:
    """Log-probabilities and entropies at temperature 1 among the tokens that can be sampled.

    Args:
        logits: (S, vocabulary) logits at the distinct states.
        state: (N,) index of the state of each action token.
        token: (N,) id of each action token.
        invalid: (vocabulary,) bool, ids that are never sampled.
    """
    if not isinstance(logits, Tensor):
        # A large vocabulary: log-probabilities without a table of all words.
        score, total, entropy = logits.distribution(state, token, invalid)
        return TokenLogprobs(score - total.index_select(0, state), entropy.index_select(0, state))
    logprobs = logits.float().masked_fill(invalid, -torch.inf).log_softmax(-1)
    # p log p of an invalid word is 0, and not 0 * -inf.
    entropy = -(logprobs.exp() * logprobs.masked_fill(invalid, 0.0)).sum(-1)
    chosen = logprobs.reshape(-1).index_select(0, state * logprobs.shape[-1] + token)
    return TokenLogprobs(chosen, entropy.index_select(0, state))


def turn_index(turn_end: Tensor) -> Tensor:
    """(N,) index of the action that each token is part of, without waiting for the GPU.

    Args:
        turn_end: (N,) bool, the last token of each action; tokens of an action are neighbours.
    """
    ends = turn_end.long()
    return ends.cumsum(0) - ends


def sum_over_turn(values: Tensor, turn_end: Tensor) -> Tensor:
    """(N,) for each token the sum over all tokens of its action.

    Args:
        values: (N,).
        turn_end: (N,) bool, the last token of each action.
    """
    turn = turn_index(turn_end)
    return torch.zeros_like(values).index_add(0, turn, values).index_select(0, turn)


def first_of_turn(values: Tensor, turn_end: Tensor) -> Tensor:
    """(N,) for each token the entry of the first token of its action; for arguments see `sum_over_turn`."""
    first = torch.cat([turn_end.new_ones(1), turn_end[:-1]])[: len(turn_end)]
    return values[first.nonzero().squeeze(-1)].index_select(0, turn_index(turn_end))


# -- the losses of a minibatch ---------------------------------------------------------------------------------------


class PolicyLoss(NamedTuple):
    """Terms of a clipped policy loss, each a mean over the action tokens; `loss` is what is minimised."""

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor | None
    """PPO's loss of V; None without a critic."""
    kl_loss: Tensor | None
    """GRPO's estimate of the KL to the reference model, before `kl_weight`; None for PPO, and without a penalty."""
    entropy: Tensor
    approx_kl: Tensor
    """``mean(ratio - 1 - log ratio)`` of tokens: how far the policy has moved since the round was collected."""
    clipfrac: Tensor
    """Share of the tokens whose ratio is outside of the clipping range."""
    clip_ratio_low: Tensor
    """TRL's ``clip_ratio/low_mean``: share of the tokens below the range with advantages below 0, without gradient."""
    clip_ratio_high: Tensor
    """TRL's ``clip_ratio/high_mean``: share of the tokens above the range with advantages above 0."""
    ratio: Tensor
    """The ratio that is farthest from 1: in the first minibatch of a round all are 1."""


def _mean_over_tokens(
    loss: Tensor,
    now: TokenLogprobs,
    token_log_ratio: Tensor,
    ratio: Tensor,
    *,
    is_clipped: Tensor,
    beyond: BeyondClip,
) -> PolicyLoss:
    """Average a policy loss and what is logged with it over the action tokens.

    Args:
        loss: (N,) loss of each token.
        now: log-probabilities and entropies under the policy that is being trained.
        token_log_ratio: (N,) logarithm of the ratio of each token to the policy that sampled it.
        ratio: (N,) the ratio that is clipped, of the token or of its action.
        is_clipped: (N,) bool, see `PolicyLoss.clipfrac`.
        beyond: the tokens of `PolicyLoss.clip_ratio_low` and `PolicyLoss.clip_ratio_high`.
    """
    count = max(1, loss.numel())
    mean_loss = loss.sum() / count
    entropy = now.entropy.sum() / count
    # What is logged has no gradient.
    with torch.no_grad():
        farthest = ratio[ratio.log().abs().argmax()] if len(ratio) else ratio.new_ones(())
        return PolicyLoss(
            loss=mean_loss,
            policy_loss=mean_loss,
            value_loss=None,
            kl_loss=None,
            entropy=entropy,
            approx_kl=(token_log_ratio.exp() - 1.0 - token_log_ratio).sum() / count,
            clipfrac=is_clipped.sum() / count,
            clip_ratio_low=beyond.low.sum() / count,
            clip_ratio_high=beyond.high.sum() / count,
            ratio=farthest,
        )


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
) -> PolicyLoss:
    """``mean w c max(-A rho, -A clip(rho, 1 - clip, 1 + clip_high))`` with ``rho = pi(u) / pi_old(u)``.

    It is the negative of Schulman et al. 2017, equation 7.

    Args:
        now: log-probabilities and entropies under the policy that is being trained.
        old_logprob: (N,) log-probability of each token when it was sampled.
        advantage: (N,).
        clip: clipping range epsilon: ratios are clipped to [1 - clip, 1 + clip_high].
        clip_high: upper clipping range; None: equal to `clip` (Yu et al. 2025, DAPO).
        weight: (N,) see `loss_weights`; None: 1.
        turn_end: (N,) bool, the last token of each action: the ratio is that of the whole action; None: of the token.
        importance: (N,) c, see `importance_weights`, constant while a round is learned from; None: 1.
    """
    token_log_ratio = now.logprob - old_logprob
    log_ratio = token_log_ratio if turn_end is None else sum_over_turn(token_log_ratio, turn_end)
    ratio = log_ratio.exp()

    # The maximum is pessimistic: beyond the range a ratio has a gradient only if it moves the wrong way.
    high = clip if clip_high is None else clip_high
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1.0 - clip, 1.0 + high))
    if weight is not None:
        loss = loss * weight
    if importance is not None:
        loss = loss * importance

    is_clipped = (ratio < 1.0 - clip) | (ratio > 1.0 + high)
    beyond = beyond_clip(ratio, advantage, clip, clip_high)
    return _mean_over_tokens(loss, now, token_log_ratio, ratio, is_clipped=is_clipped, beyond=beyond)


def truncated_policy_loss(
    now: TokenLogprobs,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    cap: float,
    clip: float,
    clip_high: float | None = None,
    weight: Tensor | None = None,
    turn_end: Tensor | None = None,
) -> PolicyLoss:
    """The policy gradient at the present policy, from tokens that an older one sampled and that are learned from once.

    ``-mean w A c log pi(u)`` with the constant ``c = min(rho, cap)`` for ``rho = pi(u) / mu(u)``: importance weights,
    truncated as in Espeholt et al. 2018, IMPALA, equation 4. The value of the loss has ``c`` alone in place of
    ``c log pi(u)``.

    As in PPO, ``c`` is 0 where ``rho`` is already beyond ``1 + clip_high`` with an advantage above 0, or below ``1 -
    clip`` with one below 0. Several rounds in turn come from nearly the same ``mu``. Without this limit each of them
    would push the same tokens again before a round shows the effect, and the policy would diverge.

    Args:
        now: log-probabilities and entropies under the policy that is being trained.
        old_logprob: (N,) log-probability of each token under the policy ``mu`` that sampled it.
        advantage: (N,).
        cap: the largest weight.
        clip: clipping range epsilon: ratios are clipped to [1 - clip, 1 + clip_high].
        clip_high: upper clipping range; None: equal to `clip`.
        weight: (N,) see `loss_weights`; None: 1.
        turn_end: (N,) bool, the last token of each action: weights are those of whole actions; None: of tokens.

    Returns:
        `PolicyLoss` whose ratios are those to the policy that sampled. ``clipfrac`` is the share of tokens whose weight
        was cut or set to 0, ``clip_ratio_low`` and ``clip_ratio_high`` are the shares of those set to 0.
    """
    token_log_ratio = now.logprob - old_logprob
    log_ratio = token_log_ratio if turn_end is None else sum_over_turn(token_log_ratio, turn_end)
    ratio = log_ratio.detach().exp()
    beyond = beyond_clip(ratio, advantage, clip, clip_high)
    is_dropped = beyond.low | beyond.high
    importance = log_ratio.detach().clamp(max=math.log(cap)).exp() * ~is_dropped
    # Equals 1 and has the gradient of log_ratio, that is of log pi(u).
    unit_with_gradient = (log_ratio - log_ratio.detach()).exp()
    loss = -advantage * importance * unit_with_gradient
    if weight is not None:
        loss = loss * weight

    is_clipped = is_dropped | (ratio > cap)
    return _mean_over_tokens(loss, now, token_log_ratio, ratio, is_clipped=is_clipped, beyond=beyond)


def clipped_or_truncated_loss(
    now: TokenLogprobs,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    clip: float,
    clip_high: float | None,
    weight: Tensor | None,
    turn_end: Tensor | None,
    importance: Tensor | None,
    importance_cap: float | None,
) -> PolicyLoss:
    """Return `clipped_policy_loss`, or with an ``importance_cap`` `truncated_policy_loss`.

    Args:
        now: see `clipped_policy_loss`, as for the arguments that follow.
        old_logprob: (N,).
        advantage: (N,).
        clip: clipping range epsilon: ratios are clipped to [1 - clip, 1 + clip_high].
        clip_high: upper clipping range; None: equal to `clip`.
        weight: (N,) or None.
        turn_end: (N,) bool or None.
        importance: (N,) or None; `truncated_policy_loss` computes its own.
        importance_cap: the cap of `truncated_policy_loss`; None: `clipped_policy_loss`.
    """
    if importance_cap is not None:
        return truncated_policy_loss(
            now,
            old_logprob,
            advantage,
            cap=importance_cap,
            clip=clip,
            clip_high=clip_high,
            weight=weight,
            turn_end=turn_end,
        )
    return clipped_policy_loss(
        now,
        old_logprob,
        advantage,
        clip=clip,
        clip_high=clip_high,
        weight=weight,
        turn_end=turn_end,
        importance=importance,
    )


class PPOColumns(NamedTuple):
    """The columns of a rollout that `ppo_loss` reads, (N,) float32 each."""

    logprob: Tensor
    """Log-probability of the token when it was sampled, or when the round was read again."""
    value: Tensor
    """V of the state in which the token was chosen, or in which its action began."""
    advantage: Tensor
    """Advantage, whitened over the round."""
    target: Tensor
    """The target of V: advantage before whitening, plus value."""
    weight: Tensor | None = None
    """See `loss_weights`; None: 1."""
    importance: Tensor | None = None
    """A factor of the policy loss alone, see `importance_weights`; None: 1."""


def ppo_loss(
    now: TokenLogprobs,
    value: Tensor | None,
    old: PPOColumns,
    *,
    clip: float,
    value_clip: float | None,
    value_weight: float,
    entropy_weight: float = 0.0,
    clip_high: float | None = None,
    turn_end: Tensor | None = None,
    importance_cap: float | None = None,
) -> PolicyLoss:
    """Clipped policy loss plus ``value_weight`` times the clipped value loss, minus ``entropy_weight`` times entropy.

    It is the negative of Schulman et al. 2017, equation 9, with `clipped_policy_loss` and ``L_v = 1/2 mean w max((V -
    R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2)``.

    Args:
        now: log-probabilities and entropies under the policy that is being trained.
        value: (N,) V of that policy's critic; None: the critic learns elsewhere, and there is no value loss.
        old: columns of the rollout, from before the policy learns from it.
        clip: clipping range epsilon: ratios are clipped to [1 - clip, 1 + clip_high].
        value_clip: clipping range of V around its value at collection time; None does not clip.
        value_weight: weight of the value loss.
        entropy_weight: weight of the entropy bonus; 0 as published.
        clip_high: upper clipping range; None: equal to `clip`.
        turn_end: (N,) bool, the last token of each action: ratios are those of whole actions, and V is that of the
            state in which an action begins; None: ratios and values of tokens.
        importance_cap: take `truncated_policy_loss` with this cap in place of the clipped loss.
    """
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

    loss = terms.policy_loss - entropy_weight * terms.entropy
    if value is None:
        return terms._replace(loss=loss)

    # The clipped loss of V is pessimistic too: V gains nothing by moving further from its old value at once.
    count = max(1, value.numel())
    if turn_end is not None:
        value = first_of_turn(value, turn_end)
    error = (value - old.target).square()
    if value_clip is not None:
        near = torch.clamp(value, old.value - value_clip, old.value + value_clip)
        error = torch.maximum(error, (near - old.target).square())
    if old.weight is not None:
        error = error * old.weight
    value_loss = 0.5 * error.sum() / count

    return terms._replace(loss=loss + value_weight * value_loss, value_loss=value_loss)


# -- the KL to the reference model -----------------------------------------------------------------------------------


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

    ``k1 = log pi - log pi_ref``, ``k2 = k1^2 / 2``, ``k3 = e^-k1 - 1 + k1``. As terms of a loss they differ. The
    expected gradient of k2 is that of the KL; that of k3 is the same near ``pi = pi_ref``; that of k1 is pure noise, so
    k1 belongs into rewards.

    Args:
        logprob: (N,) log-probability of each token under the policy that is being trained.
        ref_logprob: (N,) the same under the reference model.
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
    """The mean KL per action token to reach; None keeps the coefficient."""
    horizon: float | None = None
    """Number of episodes over which the coefficient rises by at most 22 % (a factor of e^0.2) or falls by 20 %."""

    def __post_init__(self) -> None:
        check_range("(0, inf)", kl_target=self.target, kl_horizon=self.horizon)
        if (self.target is None) != (self.horizon is None):
            raise UserError(
                f"kl_target and kl_horizon must both be given or both be left out, got {self.target}, {self.horizon}"
            )

    def updated(self, kl_weight: float, kl: float, samples: int) -> float:
        """Return the coefficient for the time after a round: at least a tenth of the present one.

        Args:
            kl_weight: the present coefficient.
            kl: mean KL per action token of the round.
            samples: number of episodes of the round.
        """
        if self.target is None or self.horizon is None:
            return kl_weight
        error = min(0.2, max(-0.2, kl / self.target - 1.0))
        # Beyond five horizons of samples the published factor could be negative.
        return kl_weight * max(0.1, 1.0 + error * samples / self.horizon)
