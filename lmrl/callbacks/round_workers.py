"""Rounds that processes of a Ray cluster play, with the weights of the moment."""

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Trainer
from numpy.typing import NDArray
from torch import Tensor

from lmrl.callbacks.interactive import policy_of
from lmrl.errors import UserError
from lmrl.modules import LanguageModule
from lmrl.partners import environment
from lmrl.rollout import MakeEnv, in_order, rollout
from lmrl.training.sharding import is_sharded
from lmrl.types import Episode, Policy, Reply, Request, Resettable, Start, Valued
from lmrl.utils.cluster import Workers

__all__ = ["CountedPolicy", "Piece", "RoundWorkers", "pieces_of", "play_piece"]


class Piece(NamedTuple):
    """A part of a round that was played."""

    episodes: list[Episode]
    """In the order of their starts."""
    calls: int
    """How often the policy was asked."""
    turns: int
    tokens: int
    """That it said."""


class CountedPolicy:
    """A policy whose calls are counted; it knows what states are worth if the policy does."""

    state_values: Callable[[Sequence[Request]], Sequence[float]]

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        if isinstance(policy, Valued):
            self.state_values = policy.state_values
        self.calls = self.turns = self.tokens = 0

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        replies = self._policy.act(requests)
        self.calls += 1
        self.turns += len(requests)
        self.tokens += sum(len(reply.ids) for reply in replies)
        return replies

    def reset(self) -> None:
        if isinstance(self._policy, Resettable):
            self._policy.reset()


def pieces_of(starts: Sequence[Start], size: int) -> list[Sequence[Start]]:
    """Split the starts into pieces of the given size; the last one may be smaller."""
    return [starts[first : first + size] for first in range(0, len(starts), size)]


def play_piece(policy: Policy, make_env: MakeEnv, starts: Sequence[Start], task: str, slots: int) -> Piece:
    """Play episodes side by side; one whose game or partner fails twice ends there (`lmrl.rollout`)."""
    counted = CountedPolicy(policy)
    episodes = in_order(rollout(counted, make_env, starts, task=task, slots=slots, forgiving=True))
    return Piece(episodes, counted.calls, counted.turns, counted.tokens)


class _Weights(NamedTuple):
    """All numbers of a module in a round."""

    number: int
    """Of the round."""
    bytes: dict[str, NDArray[np.uint8]]
    """Of each parameter and buffer. As arrays they lie in the object store once for all processes of a machine."""


class RoundWorkers:
    """Processes of a Ray cluster that hold a module, and play pieces of each round with its weights of then.

    The module is sent once, but for its submodules unused in rollouts; its numbers once in a round.

    Args:
        address: as of `lmrl.utils.cluster.Cluster`.
        count: how many processes; None: as many as the cluster has cores (GPUs, if the module is on one) for.
        module: that is being trained.
        trainer: in whose precision it plays.
        task: name of the task.
        env: arguments of the environment.
        slots: environments side by side, in each process.
        decoding: settings of the policy.

    Raises:
        UserError: the weights are in shards; and as `lmrl.utils.cluster.Workers`.
    """

    def __init__(
        self,
        address: str,
        count: int | None,
        module: LanguageModule,
        trainer: Trainer,
        task: str,
        env: Mapping[str, Any],
        slots: int,
        decoding: Mapping[str, Any],
    ) -> None:
        if is_sharded(module):
            raise UserError(
                "ray needs whole weights: rounds of a model in shards are played by the processes themselves"
            )
        self._module = module
        settings: dict[str, Any] = {"task": task, "env": dict(env), "slots": slots, "decoding": dict(decoding)}
        make = partial(_RoundPlayer, _lean(module), trainer.precision_plugin, **settings)
        gpu = module.device.type == "cuda"
        self._workers: Workers[Sequence[Start], Piece] = Workers(address, count, make, gpu=gpu)

    def play(self, pieces: Sequence[Sequence[Start]], number: int) -> list[Piece]:
        """Play a round with the weights of now.

        Args:
            pieces: starts of the episodes that are played together.
            number: of the round.

        Raises:
            UserError: as `lmrl.utils.cluster.Workers.map`.
        """
        numbers = {name: _bytes(tensor) for name, tensor in _tensors(_lean(self._module)).items()}
        return [*self._workers.map(pieces, _Weights(number, numbers))]

    def close(self) -> None:
        """End the processes."""
        self._workers.close()


class _RoundPlayer:
    """A worker in a process of a cluster that plays pieces of rounds."""

    def __init__(
        self,
        module: LanguageModule,
        precision: Any,
        task: str,
        env: Mapping[str, Any],
        slots: int,
        decoding: Mapping[str, Any],
    ) -> None:
        self._module = module
        self._precision = precision
        self._make_env: Callable[[], Any] = environment(task, env)
        self._task = task
        self._slots = slots
        self._decoding = decoding
        self._number: int | None = None

    def __call__(self, piece: Sequence[Start], weights: _Weights) -> Piece:
        with self._precision.forward_context():
            if weights.number != self._number:
                self._load(weights)
            return play_piece(self._policy, self._make_env, piece, self._task, self._slots)

    @torch.no_grad()
    def _load(self, weights: _Weights) -> None:
        for name, tensor in _tensors(self._module).items():
            read = torch.from_numpy(weights.bytes[name].copy())
            tensor.copy_(read.view(tensor.dtype).view(tensor.shape))
        self._policy = policy_of(self._module, self._decoding)
        self._number = weights.number


def _lean(module: LanguageModule) -> LanguageModule:
    """A shallow copy of the module without the submodules that rollouts don't use."""
    found = copy.copy(module)  # without its trainer
    left = {name: part for name, part in module._modules.items() if name not in module.unused_in_rollouts}
    vars(found).update(_modules=left, reporter=None, _read_rows=None)
    return found


def _tensors(module: LanguageModule) -> dict[str, Tensor]:
    """All parameters and buffers, those too that are in no state dict."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _bytes(tensor: Tensor) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return found
