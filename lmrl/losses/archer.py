"""ArCHer (Zhou et al. 2024, arXiv 2402.19446): a critic of whole actions, and an actor that samples their tokens."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from lmrl.losses.awr import advantage_weights
from lmrl.losses.ilql import expectile_loss
from lmrl.losses.policy_gradient import turn_index
from lmrl.losses.returns import td_target

__all__ = ["ArCHerLoss", "TurnValues", "Turns", "archer_loss", "awr_actor_loss", "clipped_actor_loss", "turns_of"]


class Turns(NamedTuple):
    """The assignment of N action tokens to T whole actions.

    Example: actions ``x y`` and ``z``, side by side::

        turn_end = (False, True, True)    first = (0, 2)    last = (1, 2)    turn = (0, 0, 1)
    """

    first: Tensor
    """(T,) index of the first token of each action."""
    last: Tensor
    """(T,) index of the last token of each action."""
    turn: Tensor
    """(N,) which action each token belongs to."""

    def sum(self, values: Tensor) -> Tensor:
        """(T,) sums over the tokens of each action of (N,) values."""
        return values.new_zeros(len(self.last)).index_add(0, self.turn, values)


class TurnValues(NamedTuple):
    """The critic's outputs for T whole actions, (T,) float32 each."""

    q: Sequence[Tensor]
    """Q(o, a) of each head, read where the last token of the action has been read and nothing beyond."""
    target_q: Sequence[Tensor]
    """The same of the target networks."""
    value: Tensor
    """V(o), read where the first token of the action is chosen."""
    next_value: Tensor
    """V of the state in which the policy acts next."""


class ArCHerLoss(NamedTuple):
    """Terms of the loss; `loss` is what is minimised. Sums over actions are divided by the number of action tokens.

    The others but `weight_max` are means over action tokens, each of which has the number of its action.
    """

    loss: Tensor
    q_loss: Tensor
    v_loss: Tensor
    actor_loss: Tensor
    q_mean: Tensor
    v_mean: Tensor
    advantage: Tensor
    weight_mean: Tensor
    """Mean of the actor's weights: those of the regression, or ratios of probabilities."""
    weight_max: Tensor
    """The largest; of several processes or batches together the mean of theirs is logged."""


def turns_of(turn_end: Tensor) -> Turns:
    """The actions of a batch, from the (N,) marks of their last tokens; tokens of an action are neighbours."""
    last = turn_end.nonzero().squeeze(-1)
    # An action begins behind the end of the one before it.
    first = torch.cat([last.new_zeros(1), last + 1])[:-1]
    return Turns(first, last, turn_index(turn_end))


def awr_actor_loss(
    logprob: Tensor, turns: Turns, advantage: Tensor, *, temperature: float, max_weight: float
) -> tuple[Tensor, Tensor]:
    """``-sum_t w_t log pi(a_t | o_t) / N`` with ``w = min(exp(A / temperature), max_weight)``.

    Args:
        logprob: (N,) log-probability of each action token.
        turns: T actions.
        advantage: (T,).
        temperature: how much better an action must be to count e times as much.
        max_weight: upper limit of an action's weight.

    Returns:
        () the loss, and (T,) the weights.
    """
    weight = advantage_weights(advantage, temperature, max_weight)
    return -(weight[turns.turn] * logprob).sum() / max(1, logprob.numel()), weight


def clipped_actor_loss(
    logprob: Tensor, old_logprob: Tensor, turns: Turns, advantage: Tensor, *, clip: float
) -> tuple[Tensor, Tensor]:
    """``-sum_t min(A rho, A clip(rho, 1 - clip, 1 + clip)) / N``; rho is the ratio of a whole action's probabilities.

    Its gradient at rho = 1 is the policy gradient, ``-A sum_k grad log pi(u_k)``.

    Args:
        logprob: (N,) log-probability of each action token under the actor.
        old_logprob: (N,) log-probability of each action token when it was sampled.
        turns: T actions.
        advantage: (T,).
        clip: clipping range epsilon: ratios are clipped to [1 - clip, 1 + clip].

    Returns:
        () the loss, and (T,) the ratios.
    """
    advantage = advantage.detach()
    # (T,) the product of the token ratios of an action, as a sum of logarithms.
    ratio = turns.sum(logprob - old_logprob).exp()
    gain = torch.minimum(advantage * ratio, advantage * ratio.clamp(1.0 - clip, 1.0 + clip))
    return -gain.sum() / max(1, logprob.numel()), ratio.detach()


def archer_loss(
    values: TurnValues,
    reward: Tensor,
    terminated: Tensor,
    turns: Turns,
    logprob: Tensor,
    old_logprob: Tensor | None = None,
    *,
    gamma: float,
    expectile: float,
    temperature: float,
    max_weight: float,
    clip: float,
    train_actor: bool = True,
) -> ArCHerLoss:
    """``sum_i 1/2 (Q_i - y)^2 + L_expectile(V, min_i target Q_i)`` over whole actions, and the loss of the actor.

    ``y = r + gamma * V(next)`` uses the V that is being trained, ``A = min_i target Q_i - V`` has no gradient. With an
    expectile of 0.5 V is the mean of Q over the actions of the data, as in the paper; above, this is its offline form,
    implicit Q-learning (Kostrikov et al. 2022) at the level of utterances.

    Args:
        values: the critic's outputs for the T actions.
        reward: (N,) reward of each token; an action's is their sum.
        terminated: (N,) bool; the value beyond an action is zero where it is so of its last token.
        turns: the actions.
        logprob: (N,) log-probability of each action token under the actor.
        old_logprob: (N,) log-probability of each action token when it was sampled: then the actor's loss is
            `clipped_actor_loss`, else `awr_actor_loss`.
        gamma: discount per action.
        expectile: in [0.5, 1); how optimistic V is about Q.
        temperature: see `awr_actor_loss`.
        max_weight: upper limit of an action's weight.
        clip: see `clipped_actor_loss`.
        train_actor: else its loss is part of the result with weight zero.
    """
    count = max(1, logprob.numel())

    # Critic: TD(0) over turns with the online V, and V as an expectile of the lower target Q.
    target = td_target(turns.sum(reward), values.next_value, terminated[turns.last], gamma)
    min_q = reduce(torch.minimum, values.target_q)
    q_loss = torch.stack([0.5 * (q - target).square().sum() for q in values.q]).sum() / count
    v_loss = expectile_loss(values.value, min_q, expectile).sum() / count

    # Actor: a turn's advantage weighs all tokens of its action.
    advantage = (min_q - values.value).detach()
    if old_logprob is None:
        actor_loss, weight = awr_actor_loss(logprob, turns, advantage, temperature=temperature, max_weight=max_weight)
    else:
        actor_loss, weight = clipped_actor_loss(logprob, old_logprob, turns, advantage, clip=clip)

    def token_mean(per_turn: Tensor) -> Tensor:
        """The mean over the N tokens, each of which has the number of its action."""
        return per_turn[turns.turn].sum() / count

    return ArCHerLoss(
        # With weight 0 the actor's parameters still get a gradient, which distributed training waits for.
        loss=q_loss + v_loss + (actor_loss if train_actor else 0.0 * actor_loss),
        q_loss=q_loss,
        v_loss=v_loss,
        actor_loss=actor_loss,
        q_mean=token_mean(torch.stack(list(values.q)).mean(0)),
        v_mean=token_mean(values.value),
        advantage=token_mean(advantage),
        weight_mean=token_mean(weight),
        weight_max=weight.max() if len(weight) else torch.zeros_like(actor_loss),
    )
