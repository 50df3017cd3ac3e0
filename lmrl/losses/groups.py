"""Advantages without a critic: what episodes of a round earned is compared with what others of their group earned."""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["GROUP_ADVANTAGES", "group_advantages", "group_spreads"]

GROUP_ADVANTAGES = ("grpo", "dr_grpo", "rloo")
"""How `group_advantages` compares."""

_EPSILON = 1e-6  # beside a standard deviation


def group_advantages(returns: ArrayLike, groups: Sequence[Hashable], kind: str) -> NDArray[np.float64]:
    """The advantage of each of M returns over those of its group.

    - ``grpo``: minus the group's mean, divided by its population standard deviation (Shao et al. 2024, section 4.1.2).
      Groups in which returns hardly differ weigh more than in the policy gradient.
    - ``dr_grpo``: minus the group's mean (Liu et al. 2025): the policy gradient times ``(k - 1) / k``.
    - ``rloo``: minus the mean of the others (Ahmadian et al. 2024): the policy gradient itself, since a baseline that
      does not depend on what it is compared with does not bias it.

    Args:
        returns: (M,).
        groups: (M,) equal for returns that are compared; one that is alone has advantage 0.
        kind: one of `GROUP_ADVANTAGES`.
    """
    centred, index, size = _centred(returns, groups)
    if kind == "dr_grpo":
        return centred
    if kind == "rloo":
        return centred * (size / np.maximum(1, size - 1))[index]
    return centred / (_spreads(centred, index, size) + _EPSILON)[index]


def group_spreads(returns: ArrayLike, groups: Sequence[Hashable]) -> NDArray[np.float64]:
    """The population standard deviation of the returns of each group; arguments as of `group_advantages`."""
    return _spreads(*_centred(returns, groups))


def _centred(
    returns: ArrayLike, groups: Sequence[Hashable]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """(M,) returns less the mean of their group, (M,) number of that group, and the size of each group."""
    returns = np.asarray(returns, dtype=np.float64)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    index = np.asarray([numbers[group] for group in groups], dtype=np.int64)
    size = np.bincount(index)
    return returns - (np.bincount(index, returns) / size)[index], index, size


def _spreads(centred: NDArray[np.float64], index: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.float64]:
    spread: NDArray[np.float64] = np.sqrt(np.bincount(index, centred**2) / size)
    return spread
