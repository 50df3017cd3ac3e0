"""Proximal policy optimisation (Schulman et al. 2017), token by token.

KL penalty and its controller, GAE, clipped losses.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lmrl.errors import UserError, check_range

__all__ = [
    "Experience",
    "KLController",
    "PPOLoss",
    "TokenLogprobs",
    "explained_variance",
    "gae",
    "k3",
    "ppo_loss",
    "token_logprobs",
    "whiten",
    "with_kl_penalty",
]


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
        """The coefficient after a round of so many samples with this mean KL."""
        if self.target is None or self.horizon is None:
            return kl_weight
        error = min(0.2, max(-0.2, kl / self.target - 1.0))
        return kl_weight * (1.0 + error * samples / self.horizon)


def gae(
    rewards: ArrayLike, values: ArrayLike, end_value: float, gamma: float, gae_lambda: float
) -> NDArray[np.float64]:
    """Generalised advantage estimates over the action tokens of one episode (Schulman et al. 2016, equation 16).

    ``delta_k = r_k + gamma * V_{k+1} - V_k`` and ``A_k = delta_k + gamma * lambda * A_{k+1}``. What the environment
    says between two turns is no step: the state after a turn's last token is that of the next turn's first.

    Args:
        rewards: (T,) one per action token.
        values: (T,) V of the states in which the tokens were chosen.
        end_value: V of the state after the last observation; 0 if the rules ended the episode.
        gamma: discount per action token.
        gae_lambda: 0 trusts V after one token, 1 trusts the rewards alone.

    Returns:
        (T,) float64; ``A + values`` are the targets of V.
    """
    rewards, values = np.asarray(rewards, dtype=np.float64), np.asarray(values, dtype=np.float64)
    advantages = np.empty_like(values)
    following, tail = float(end_value), 0.0
    for step in range(len(rewards) - 1, -1, -1):
        tail = rewards[step] + gamma * following - values[step] + gamma * gae_lambda * tail
        advantages[step], following = tail, values[step]
    return advantages


def whiten(advantages: ArrayLike, epsilon: float = 1e-8) -> NDArray[np.float64]:
    """Shift and scale to mean 0 and population variance 1, over all action tokens of a round."""
    advantages = np.asarray(advantages, dtype=np.float64)
    if not advantages.size:
        return advantages
    whitened: NDArray[np.float64] = (advantages - advantages.mean()) / np.sqrt(advantages.var() + epsilon)
    return whitened


def explained_variance(values: ArrayLike, targets: ArrayLike) -> float:
    """``1 - Var(targets - values) / Var(targets)``: 1 is perfect, 0 no better than a constant; NaN without variance."""
    values, targets = np.asarray(values, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    variance = float(targets.var()) if targets.size else 0.0
    return 1.0 - float((targets - values).var()) / variance if variance > 0.0 else float("nan")


class Experience(NamedTuple):
    """What is known of N action tokens from the time they were sampled, (N,) float32 each: the columns of a rollout."""

    logprob: Tensor
    """Under the very distribution that they were sampled from."""
    value: Tensor
    """V of the states in which they were chosen."""
    advantage: Tensor
    """Whitened over the round."""
    target: Tensor
    """Of V: advantage before whitening, plus value."""


class TokenLogprobs(NamedTuple):
    """What a policy makes of N action tokens now, (N,) float32 each."""

    logprob: Tensor
    entropy: Tensor
    """Of the whole distribution that the token was drawn from, in nats."""


class PPOLoss(NamedTuple):
    """Terms of the loss, each a mean over the action tokens; `loss` is what is minimised. Names are CleanRL's."""

    loss: Tensor
    policy_loss: Tensor
    value_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    """``mean(ratio - 1 - log ratio)``: how far the policy has moved since the round was played."""
    clipfrac: Tensor
    """Share of the tokens whose ratio is outside of the clipping range."""
    ratio: Tensor
    """The one that is farthest from 1: in the first minibatch of a round all are 1."""


def token_logprobs(logits: Tensor, state: Tensor, token: Tensor, invalid: Tensor) -> TokenLogprobs:
    """Log-probabilities and entropies at temperature 1 among the tokens that may be said.

    Args:
        logits: (S, vocabulary) at the distinct states.
        state: (N,) index of the state of each action token.
        token: (N,) its id.
        invalid: (vocabulary,) bool, ids that are never sampled.
    """
    logprobs = logits.float().masked_fill(invalid, -torch.inf).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs.masked_fill(invalid, 0.0)).sum(-1)
    chosen = logprobs.reshape(-1).index_select(0, state * logprobs.shape[-1] + token)
    return TokenLogprobs(chosen, entropy.index_select(0, state))


def ppo_loss(
    now: TokenLogprobs,
    value: Tensor,
    old: Experience,
    *,
    clip: float,
    value_clip: float | None,
    value_weight: float,
    entropy_weight: float = 0.0,
) -> PPOLoss:
    """Clipped policy loss plus ``value_weight`` times the clipped value loss, minus ``entropy_weight`` times entropy.

    ``L_pg = mean max(-A rho, -A clip(rho, 1 - clip, 1 + clip))`` with ``rho = pi(u) / pi_old(u)``, and
    ``L_v = 1/2 mean max((V - R)^2, (clip(V, V_old - value_clip, V_old + value_clip) - R)^2)``.

    Args:
        now: of the policy that is being trained.
        value: (N,) its V.
        old: from the time of sampling.
        clip: how far the ratio may pay to move from 1.
        value_clip: likewise for V and its old value; None does not clip.
        value_weight: weight of the value loss.
        entropy_weight: weight of the entropy bonus; 0 as published.
    """
    count = max(1, value.numel())
    log_ratio = now.logprob - old.logprob
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    policy_loss = torch.maximum(-old.advantage * ratio, -old.advantage * clipped).sum() / count
    error = (value - old.target).square()
    if value_clip is not None:
        near = torch.clamp(value, old.value - value_clip, old.value + value_clip)
        error = torch.maximum(error, (near - old.target).square())
    value_loss = 0.5 * error.sum() / count
    entropy = now.entropy.sum() / count
    with torch.no_grad():
        approx_kl = (ratio - 1.0 - log_ratio).sum() / count
        clipfrac = ((ratio - 1.0).abs() > clip).sum() / count
        farthest = ratio[log_ratio.abs().argmax()] if len(ratio) else torch.ones(())
    loss = policy_loss + value_weight * value_loss - entropy_weight * entropy
    return PPOLoss(loss, policy_loss, value_loss, entropy, approx_kl, clipfrac, farthest)
