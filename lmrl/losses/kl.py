"""What keeps a policy near the one that it started from: a price per action token, and who sets the price."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lmrl.errors import UserError, check_range

__all__ = ["KLController", "k3", "with_kl_penalty"]


def with_kl_penalty(
    rewards: ArrayLike, logprob: ArrayLike, start_logprob: ArrayLike, weight: float
) -> NDArray[np.float64]:
    """``r_k - weight * (log pi(u_k) - log pi_start(u_k))``, per action token (Ziegler et al. 2019, section 2.1).

    Args:
        rewards: (T,) of the environment.
        logprob: (T,) under the policy that sampled.
        start_logprob: (T,) under the frozen policy.
        weight: price of a nat.
    """
    ratio = np.asarray(logprob, dtype=np.float64) - np.asarray(start_logprob, dtype=np.float64)
    return np.asarray(rewards, dtype=np.float64) - weight * ratio


def k3(log_ratio: ArrayLike) -> NDArray[np.float64]:
    """``e^x - 1 - x``, never negative (Schulman 2020, "Approximating KL divergence").

    With ``x = log pi_start(u) - log pi(u)`` of tokens that ``pi`` sampled, its mean estimates ``KL(pi, pi_start)``
    without bias; with the opposite sign, as in the reference implementation, it does not.
    """
    log_ratio = np.asarray(log_ratio, dtype=np.float64)
    estimate: NDArray[np.float64] = np.expm1(log_ratio) - log_ratio
    return estimate


@dataclass(frozen=True, slots=True)
class KLController:
    """The price of a nat: fixed, or moved so that the KL approaches a target (Ziegler et al. 2019, section 2.2).

    Raises:
        UserError: only one of ``target`` and ``horizon``, or one that is not positive.
    """

    target: float | None = None
    """Mean KL per action token to be held; None keeps the price."""
    horizon: float | None = None
    """How many samples it takes to change the price by a factor of about e."""

    def __post_init__(self) -> None:
        given = [value for value in (self.target, self.horizon) if value is not None]
        check_range("(0, inf)", kl_target=self.target, kl_horizon=self.horizon)
        if len(given) == 1:
            raise UserError(
                f"kl_target and kl_horizon must both be given or both be left out, got {self.target}, {self.horizon}"
            )

    def after(self, weight: float, kl: float, samples: int) -> float:
        """The price after a round of so many samples with this mean KL."""
        if self.target is None or self.horizon is None:
            return weight
        error = min(0.2, max(-0.2, kl / self.target - 1.0))
        return weight * (1.0 + error * samples / self.horizon)
