"""Rounds that other processes play, of this machine or of a Ray cluster, with the weights of a moment."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrl.callbacks.interactive import policy_of
from lmrl.envs import registry
from lmrl.envs.registry import register_where_unknown
from lmrl.envs.task import Task
from lmrl.errors import UserError
from lmrl.models.sharding import is_sharded
from lmrl.modules import LanguageModule
from lmrl.partners import environment
from lmrl.rollout import Piece, play_piece
from lmrl.types import Start
from lmrl.utils.cluster import Workers, worker_threads
from lmrl.utils.worker_processes import WorkerProcesses

__all__ = ["RoundWorkers", "WeightsSnapshot"]

_NOTEBOOK = "__main__:"  # before the name of a class in an entry point


class WeightsSnapshot(NamedTuple):
    """A copy of what a policy has learned so far."""

    step: int
    """Optimizer steps that it has learned from."""
    tensors: dict[str, Tensor]
    """By name, on the CPU."""


class _Sent(NamedTuple):
    """Weights on their way to a worker."""

    step: int
    bytes: dict[str, NDArray[np.uint8]]
    """As bytes, since numpy has no bfloat16. Ray's object store holds arrays once for all processes of a machine."""


class RoundWorkers:
    """Processes that hold a copy of a module, and play pieces of each round with the weights that they are given.

    The module is sent once, without the submodules that rollouts don't use. Its weights are sent once per round, those
    of adapters alone where nothing else learns.

    Args:
        address: address of a Ray cluster, see `lmrl.utils.cluster.Cluster`; None: processes of this machine.
        count: how many processes; None: one, or as many as the cluster has cores (GPUs, if the module is on one) for.
        module: the module that is being trained.
        task: name of the task.
        env: arguments of the environment.
        slots: environments side by side, in each process.
        decoding: settings of the policy.

    Raises:
        UserError: the weights are in shards; and as `lmrl.utils.cluster.Workers`.
    """

    def __init__(
        self,
        address: str | None,
        count: int | None,
        module: LanguageModule,
        task: str,
        env: Mapping[str, Any],
        slots: int,
        decoding: Mapping[str, Any],
    ) -> None:
        if is_sharded(module):
            raise UserError(
                "workers need whole weights: rounds of a model in shards are played by the processes themselves"
            )
        self._module = module
        record = registry.task(task)
        settings: dict[str, Any] = {"task": record, "env": dict(env), "slots": slots, "decoding": dict(decoding)}
        if record.entry_point.startswith(_NOTEBOOK):
            settings["game"] = getattr(sys.modules["__main__"], record.entry_point.removeprefix(_NOTEBOOK))
        make = partial(_RoundPlayer, module.copy_for_rollouts(), **settings)
        self._workers: Workers[Sequence[Start], Piece] | WorkerProcesses[Sequence[Start], Piece]
        if address is None:
            self._workers = WorkerProcesses(count or 1, make)
        else:
            self._workers = Workers(address, count, make, gpu=module.device.type == "cuda")

    def weights(self, step: int) -> WeightsSnapshot:
        """Return a copy of the present weights.

        Args:
            step: the number of optimizer steps that they have learned from.
        """
        tensors = {}
        for name, tensor in _moving(self._module).items():
            tensors[name] = tensor.detach().to("cpu", copy=True)
        return WeightsSnapshot(step, tensors)

    def play(self, pieces: Sequence[Sequence[Start]], weights: WeightsSnapshot) -> list[Piece]:
        """Play a round.

        Args:
            pieces: starts of the episodes that are played together.
            weights: weights of the policy.

        Raises:
            UserError: as `lmrl.utils.cluster.Workers.map`.
        """
        sent: dict[str, NDArray[np.uint8]] = {}
        for name, tensor in weights.tensors.items():
            sent[name] = tensor.contiguous().flatten().view(torch.uint8).numpy()
        return list(self._workers.map(pieces, _Sent(weights.step, sent)))

    def close(self) -> None:
        """End the processes."""
        self._workers.close()


class _RoundPlayer:
    """Plays pieces of rounds in a worker process."""

    def __init__(
        self,
        module: LanguageModule,
        task: Task,
        env: Mapping[str, Any],
        slots: int,
        decoding: Mapping[str, Any],
        game: type | None = None,
    ) -> None:
        torch.set_num_threads(worker_threads())
        if game is not None:  # a class of a notebook, which no other process can import
            setattr(sys.modules["__main__"], game.__name__, game)
        register_where_unknown(task)
        self._module = module
        self._make_env: Callable[[], Any] = environment(task.name, env)
        self._task = task.name
        self._slots = slots
        self._decoding = decoding
        self._step: int | None = None

    def __call__(self, piece: Sequence[Start], weights: _Sent) -> Piece:
        # A worker plays several pieces with the same weights, and loads them with the first.
        if weights.step != self._step:
            self._load(weights)
        return play_piece(self._policy, self._make_env, piece, self._task, self._slots)

    @torch.no_grad()
    def _load(self, weights: _Sent) -> None:
        tensors = _tensors(self._module)
        for name, received in weights.bytes.items():
            tensor = tensors[name]
            copied = torch.from_numpy(received.copy())  # arrays of the object store are read-only
            tensor.copy_(copied.view(tensor.dtype).view(tensor.shape))
        self._policy = policy_of(self._module, self._decoding)
        self._step = weights.step


def _tensors(module: LanguageModule) -> dict[str, Tensor]:
    """All parameters and buffers, also those that are in no state dict."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _moving(module: LanguageModule) -> dict[str, Tensor]:
    """Return the tensors of the rollout policy that training may change.

    What is frozen in the language model that learns, under its adapters, does not change.
    """
    frozen = {id(parameter) for parameter in module.trainable_model.parameters() if not parameter.requires_grad}
    played = _tensors(module.copy_for_rollouts())  # the same tensors, without those that only learning needs
    return {name: tensor for name, tensor in played.items() if id(tensor) not in frozen}
