"""Critics: a trunk of its own with value heads, and a value head on hidden states that it cannot change."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.models.heads import ValueHead, copy_sharing_frozen
from lmrl.models.lm import trunk_of
from lmrl.utils.distributed import rank_and_world_size

__all__ = ["Critic", "DetachedCritic", "OwnCritic", "TurnBaseline"]

_STATES_PER_SUM = 4096


class Critic(nn.Module):
    """Shares no parameter with the language model; its trunk begins as a copy of the model's.

    Args:
        model: the language model, all of whose parameters learn.
        q_heads: number of Q heads.
        bias: the value of all states at the start.
    """

    def __init__(self, model: PreTrainedModel, q_heads: int, bias: float) -> None:
        super().__init__()
        width = int(model.config.hidden_size)
        # Frozen parts of the model are shared, so that a copy costs memory only for what learns.
        self.trunk: PreTrainedModel = copy_sharing_frozen(trunk_of(model))
        self.q_heads = nn.ModuleList([ValueHead(width, 1, bias) for _ in range(q_heads)])
        self.v_head = ValueHead(width, 1, bias)

    def v(self, hidden: Tensor) -> Tensor:
        """(n,) V of (n, width) hidden vectors of the trunk."""
        value: Tensor = self.v_head(hidden).squeeze(-1)
        return value

    def q(self, hidden: Tensor) -> list[Tensor]:
        """(n,) for each Q head: the value of the action whose last token has been read there."""
        return [head(hidden).squeeze(-1) for head in self.q_heads]


class TurnBaseline(nn.Module):
    """The running mean of the returns that followed each turn: a baseline that costs nothing.

    Later turns have less of an episode in front of them. In a dialogue in which each question costs, that alone
    explains a third of the variance of returns to go.
    """

    _MAX_TURNS = 256  # later turns share one mean
    _EARLIER_WEIGHT = 0.5  # weight of all earlier rounds together; that of the newest one is 1

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(self._MAX_TURNS, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(self._MAX_TURNS, dtype=torch.float64))
        self.total: Tensor
        self.count: Tensor

    def update(self, returns: Sequence[NDArray[np.float64]]) -> None:
        """Take in a round of at least one episode.

        Args:
            returns: for each episode, (turns,) the return that followed each turn.
        """
        turns = np.concatenate([np.arange(len(episode_returns)) for episode_returns in returns])
        turns = np.minimum(turns, self._MAX_TURNS - 1).astype(np.int64)
        total = np.bincount(turns, np.concatenate(returns), minlength=self._MAX_TURNS)
        count = np.bincount(turns, minlength=self._MAX_TURNS)
        self.total.mul_(self._EARLIER_WEIGHT).add_(torch.from_numpy(total).to(self.total))
        self.count.mul_(self._EARLIER_WEIGHT).add_(torch.from_numpy(count).to(self.count))

    def values(self, turns: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) the mean for each turn; for a turn that no episode reached, that of the last one before it."""
        total = self.total.cpu().numpy()
        count = self.count.cpu().numpy()
        # The index of the last turn up to each one that has a mean.
        reached = np.maximum.accumulate(np.where(count > 0.0, np.arange(self._MAX_TURNS), 0))
        mean = total[reached] / np.maximum(count[reached], 1e-12)
        values: NDArray[np.float64] = mean[np.minimum(turns, self._MAX_TURNS - 1)]
        return values


class DetachedCritic(nn.Module):
    """``V(s) = baseline(turn of s) + scale * head(hidden state of s)``; no gradient reaches the hidden state.

    The head learns by a regression with an optimizer of its own (`fit`) between the rounds: neither its gradient nor
    the clipping of it touches the policy. It learns what the turn leaves unexplained, in units of that rest's root mean
    square, from states with mean 0 and deviation 1. These scales run along with the rounds, and the head's weights
    change with them, so that V stays as it was (van Hasselt et al. 2016, "Learning values across many orders of
    magnitude").

    Its parameters are frozen outside of `fit`, so that other optimizers and DDP leave them alone.

    Args:
        width: width of the hidden states.
        lr: learning rate of AdamW.
        passes: number of passes over the states of a round; 0: V is the baseline alone.
    """

    _STATES_PER_STEP = 256
    _EARLIER_WEIGHT = 0.5  # weight of the earlier rounds in the scales

    def __init__(self, width: int, lr: float, passes: int) -> None:
        super().__init__()
        self.baseline = TurnBaseline()
        self.head = ValueHead(width, 1).requires_grad_(False)
        self.register_buffer("mean_square", torch.zeros((), dtype=torch.float64))  # 0: no round was seen
        self.register_buffer("state_mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("state_scale", torch.ones(width, dtype=torch.float64))
        self.mean_square: Tensor
        self.state_mean: Tensor
        self.state_scale: Tensor
        self.learns = [f"head.{name}" for name, _ in self.head.named_parameters()]
        self.lr = lr
        self.passes = passes
        self._optimizer: torch.optim.AdamW | None = None
        self._restored: dict[str, Any] | None = None

    def residual(self, hidden: Tensor) -> Tensor:
        """(n,) residual: V less the baseline of the turn, for (n, width) hidden states."""
        value: Tensor = self.head(self._standardised(hidden)).squeeze(-1)
        return value * self.mean_square.sqrt().float()

    def _standardised(self, hidden: Tensor) -> Tensor:
        standardised: Tensor = (hidden.float() - self.state_mean.float()) / self.state_scale.float()
        return standardised

    def fit(self, hidden: Tensor, index: NDArray[np.int64], targets: NDArray[np.float64], seed: Sequence[int]) -> None:
        """Fit the head to a round. All processes call it together.

        Args:
            hidden: (n, width) hidden states that this process holds.
            index: (n,) index of each of these states among all N of the round.
            targets: (N,) returns less the baseline of their turn.
            seed: seed of the order of the states; the same on all processes.
        """
        if not self.passes or not len(targets):
            return
        wanted = self._follow(hidden, targets)
        states = self._standardised(hidden)
        # Where each of the N states is among those of this process; -1: another process holds it.
        place = np.full(len(targets), -1, dtype=np.int64)
        place[index] = np.arange(len(index))
        draw = np.random.default_rng(seed)
        with self._learning() as step:
            for _ in range(self.passes):
                order = draw.permutation(len(targets))
                for first in range(0, len(order), self._STATES_PER_STEP):
                    batch = order[first : first + self._STATES_PER_STEP]
                    # Each process computes its own states of the batch.
                    mine = batch[place[batch] >= 0]
                    rows = torch.from_numpy(place[mine]).to(states.device)
                    error = self.head(states[rows]).squeeze(-1) - wanted[torch.from_numpy(mine).to(states.device)]
                    step(error.square().sum() / len(batch))

    @contextmanager
    def _learning(self) -> Iterator[Callable[[Tensor], None]]:
        """Inside, the parameters learn: by the function that takes a step with this process's part of a loss."""
        parameters = self.learning_parameters()
        optimizer = self._optimizer_of(parameters)

        def step(loss: Tensor) -> None:
            optimizer.zero_grad()
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if _is_distributed():
                    dist.all_reduce(gradient)
                parameter.grad = gradient
            optimizer.step()

        with self.learning(), torch.enable_grad():
            yield step
        for parameter in parameters:
            parameter.grad = None

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Inside, the parameters that learn require gradients."""
        parameters = self.learning_parameters()
        for parameter in parameters:
            parameter.requires_grad_(True)
        try:
            yield
        finally:
            for parameter in parameters:
                parameter.requires_grad_(False)

    def learning_parameters(self) -> list[nn.Parameter]:
        """Return what learns between the rounds. The rest of a trunk with adapters is the policy's, and frozen."""
        named = dict(self.named_parameters())
        return [named[name] for name in self.learns]

    def _optimizer_of(self, parameters: Sequence[nn.Parameter]) -> torch.optim.AdamW:
        """Return the optimizer; it is made when the parameters are where they learn."""
        if self._optimizer is None:
            # Targets are on unit scale. Gradients of the head that are zero but for rounding errors must not become
            # whole steps.
            head = len(list(self.head.parameters()))
            groups: list[dict[str, Any]] = [{"params": parameters[:head], "eps": 1e-4}]
            if len(parameters) > head:
                groups.append({"params": parameters[head:]})
            self._optimizer = torch.optim.AdamW(groups, lr=self.lr, weight_decay=0.0)
            if self._restored is not None:
                self._optimizer.load_state_dict(self._restored)
        return self._optimizer

    def optimizer_state(self) -> dict[str, Any] | None:
        """Return the state of the optimizer, for a checkpoint; None before the first step."""
        return self._restored if self._optimizer is None else self._optimizer.state_dict()

    def restore_optimizer(self, state: dict[str, Any] | None) -> None:
        """Resume with the state of a checkpoint."""
        self._restored = state
        self._optimizer = None

    def _follow(self, hidden: Tensor, targets: NDArray[np.float64]) -> Tensor:
        """Move all scales towards a round; return the (N,) targets on their scale."""
        self._follow_targets(float(np.square(targets).mean()))
        self._follow_states(hidden, len(targets))
        scale = max(float(self.mean_square.sqrt()), 1e-8)
        return torch.as_tensor(targets / scale, dtype=torch.float32, device=hidden.device)

    def _follow_targets(self, mean_square: float) -> None:
        """Move the scale of the targets towards that of a round, and the outer layer against it."""
        before = float(self.mean_square)
        weight = 0.0 if before == 0.0 else self._EARLIER_WEIGHT
        after = weight * before + (1.0 - weight) * mean_square
        self.mean_square.fill_(after)
        if before and after:
            factor = (before / after) ** 0.5
            self.head.outer.weight.mul_(factor)
            self.head.outer.bias.mul_(factor)

    def _follow_states(self, hidden: Tensor, count: int) -> None:
        """Move mean and scale of the states towards those of a round of N states, and the inner layer against them."""
        sums = hidden.new_zeros((2, hidden.shape[1]), dtype=torch.float64)
        for start in range(0, len(hidden), _STATES_PER_SUM):  # in double precision all states would be large
            exact = hidden[start : start + _STATES_PER_SUM].double()
            sums += torch.stack([exact.sum(0), exact.square().sum(0)])
        if _is_distributed():
            dist.all_reduce(sums)
        mean, square = sums / count
        scale = (square - mean.square()).clamp(min=0.0).sqrt().clamp(min=1e-6)
        weight = self._EARLIER_WEIGHT if bool(self.state_mean.any()) else 0.0
        new_mean = weight * self.state_mean + (1.0 - weight) * mean
        new_scale = weight * self.state_scale + (1.0 - weight) * scale
        if weight > 0.0:
            moved = (new_mean - self.state_mean) / self.state_scale
            self.head.inner.bias.add_(self.head.inner.weight @ moved.float())
            self.head.inner.weight.mul_((new_scale / self.state_scale).float())
        self.state_mean.copy_(new_mean)
        self.state_scale.copy_(new_scale)


class OwnCritic(DetachedCritic):
    """A `DetachedCritic` on a trunk of its own, which begins as the policy's and learns with the head.

    With adapters on the policy, the trunk shares its frozen weights and has adapters of its own.

    Args:
        model: the policy.
        lr: learning rate of AdamW.
        passes: number of passes over the states of a round; 0: V is the baseline alone.
    """

    def __init__(self, model: PreTrainedModel, lr: float, passes: int) -> None:
        super().__init__(int(model.config.hidden_size), lr, passes)
        self.trunk: PreTrainedModel = copy_sharing_frozen(trunk_of(model))
        self.learns += [f"trunk.{name}" for name, p in self.trunk.named_parameters() if p.requires_grad]
        self.trunk.requires_grad_(False)

    def fit_trunk(
        self,
        hidden: Tensor,
        read: Callable[[int], Tensor],
        token_index: Sequence[NDArray[np.int64]],
        targets: NDArray[np.float64],
        seed: Sequence[int],
    ) -> None:
        """Fit head and trunk to a round. All processes call it together; each reads one batch of every step.

        Args:
            hidden: (n, width) states of this process, as the trunk was before.
            read: returns the (m, width) states of the tokens of the batch with this index, with a gradient.
            token_index: for each batch, (m,) index of its tokens among all N of the round.
            targets: (N,) returns less the baseline of their turn.
            seed: seed of the order of the batches; the same on all processes.
        """
        if not self.passes or not len(targets):
            return
        wanted = self._follow(hidden, targets)
        rank, world = rank_and_world_size()
        steps = -(-len(token_index) // world)  # rounded up
        draw = np.random.default_rng(seed)
        with self._learning() as step:
            for _ in range(self.passes):
                for step_index in draw.permutation(steps):
                    first = int(step_index) * world
                    num_tokens = sum(len(index) for index in token_index[first : first + world])
                    # A process that has no batch left reads the first one of the step, and nothing of it counts.
                    is_left = first + rank < len(token_index)
                    mine = first + rank if is_left else first
                    value = self.head(self._standardised(read(mine))).squeeze(-1)
                    error = value - wanted[torch.from_numpy(token_index[mine]).to(value.device)]
                    step(error.square().sum() * float(is_left) / num_tokens)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
