"""The return of a policy, estimated from episodes that another policy has played.

The estimator is per-decision importance sampling (Precup et al. 2000), self-normalised turn by turn (the consistent
weighted per-decision importance sampling of Thomas 2015, "Safe Reinforcement Learning"). With the weight
``w_t = prod_{k <= t} pi(a_k | h_k) / mu(a_k | h_k)`` of an episode up to turn ``t``, the estimate is
``sum_t sum_i w_{i,t} r_{i,t} / sum_i w_{i,t}``. An episode that has ended keeps its weight, with rewards of 0.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.evaluation.intervals import Interval, Resampled, Sample, stratified_interval

__all__ = ["OffPolicyEstimate", "off_policy_estimate"]

FloatArray = NDArray[np.float64]


class OffPolicyEstimate(NamedTuple):
    """An estimate of the return of another policy than the one that played the episodes."""

    return_mean: float
    """The estimate of its undiscounted return."""
    return_ci: Interval
    """95 % percentile bootstrap interval over episodes."""
    gain: float
    """The estimate less the mean return of the recorded episodes."""
    gain_ci: Interval
    """Its interval: both means are taken of the same resamples."""
    effective_episodes: float
    """``(sum w)^2 / sum w^2`` over the weights of whole episodes: this many equal weights would say as much."""


def off_policy_estimate(
    rewards: Sequence[FloatArray], log_ratios: Sequence[FloatArray], seed: int = 0
) -> OffPolicyEstimate:
    """Estimate the return of a policy.

    Args:
        rewards: for each episode, (T,) the reward of each turn.
        log_ratios: for each episode, (T,) ``log pi(a_t | h_t) - log mu(a_t | h_t)``: the policy against the behaviour
            policy, which chose the actions.
        seed: seed of the resampling.

    Raises:
        UserError: no episode, or the policy would never have taken the actions of any.
    """
    if not rewards:
        raise UserError("an off-policy estimate needs at least one episode")
    # All episodes side by side, as long as the longest. One that has ended keeps its weight and gets no more rewards.
    longest = max(map(len, rewards))
    reward = np.zeros((len(rewards), longest))  # (n, T)
    log_weight = np.zeros((len(rewards), longest))
    for episode, (episode_rewards, episode_log_ratios) in enumerate(zip(rewards, log_ratios, strict=True)):
        turns = len(episode_rewards)
        reward[episode, :turns] = episode_rewards
        log_weight[episode, :turns] = np.cumsum(episode_log_ratios)
        log_weight[episode, turns:] = log_weight[episode, turns - 1]
    largest = log_weight.max(axis=0)
    if not np.isfinite(largest).all():
        raise UserError("with these decoding settings the policy would have written none of the recorded replies")
    # A factor that all weights of a turn have in common cancels. Long replies would underflow without it.
    weight = np.exp(log_weight - largest)
    returns = reward.sum(axis=1)

    def estimates(counts: FloatArray) -> FloatArray:
        """Return the estimate from (R, n) counts of the episodes, (R,); NaN where a resample has no weight at all."""
        total = counts @ weight
        weighted = counts @ (weight * reward)
        with np.errstate(invalid="ignore"):
            estimate: FloatArray = (weighted / total).sum(axis=1)
        return estimate

    def resampled_return(samples: list[Resampled]) -> FloatArray:
        found = estimates(samples[0].weights)
        return found[np.isfinite(found)]

    def resampled_gain(samples: list[Resampled]) -> FloatArray:
        found = estimates(samples[0].weights) - samples[0].mean()
        return found[np.isfinite(found)]

    estimate = float(estimates(np.ones((1, len(rewards))))[0])
    episodes = [Sample(returns.tolist())]
    last = weight[:, -1]
    return OffPolicyEstimate(
        return_mean=estimate,
        return_ci=stratified_interval(episodes, resampled_return, seed),
        gain=estimate - float(returns.mean()),
        gain_ci=stratified_interval(episodes, resampled_gain, seed),
        effective_episodes=float(last.sum() ** 2 / np.square(last).sum()),
    )
