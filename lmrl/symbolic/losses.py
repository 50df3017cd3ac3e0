"""The loss of DQN and CQL: tensors in, named terms out."""

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

__all__ = ["SymbolicLoss", "symbolic_loss"]


class SymbolicLoss(NamedTuple):
    """Means over N steps."""

    loss: Tensor
    td_loss: Tensor
    cql_loss: Tensor


def symbolic_loss(
    q: Tensor, slow_next: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, gamma: float, cql_weight: float
) -> SymbolicLoss:
    """Squared TD error (Mnih et al. 2015) plus ``cql_weight * (logsumexp Q(s, .) - Q(s, a))`` (Kumar et al. 2020).

    Args:
        q: (N, 4) of the states.
        slow_next: (N, 4) of the states that follow, from the slow copy; no gradient goes there.
        action: (N,) what was done.
        reward: (N,).
        terminated: (N,) bool: the value beyond is zero.
        gamma: discount.
        cql_weight: 0 for DQN.
    """
    taken = q.gather(1, action[:, None])[:, 0]
    target = reward + gamma * slow_next.detach().amax(1) * ~terminated
    td_loss = F.mse_loss(taken, target)
    cql_loss = (q.logsumexp(1) - taken).mean()
    return SymbolicLoss(td_loss + cql_weight * cql_loss, td_loss, cql_loss)
