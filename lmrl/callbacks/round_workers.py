"""Rounds that processes of a Ray cluster play, with the weights of the moment."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrl.callbacks.interactive import policy_of
from lmrl.errors import UserError
from lmrl.models.sharding import is_sharded
from lmrl.modules import LanguageModule
from lmrl.partners import environment
from lmrl.rollout import Piece, play_piece
from lmrl.types import Start
from lmrl.utils.cluster import Workers

__all__ = ["RoundWorkers"]


class _Weights(NamedTuple):
    """The weights of a module in a round."""

    number: int
    """Of the round."""
    bytes: dict[str, NDArray[np.uint8]]
    """Of each parameter and buffer. Ray's object store holds arrays once for all processes of a machine."""


class RoundWorkers:
    """Processes of a Ray cluster that hold a copy of a module, and play pieces of each round with its present weights.

    The module is sent once, without the submodules that rollouts don't use; its weights are sent once per round.

    Args:
        address: as of `lmrl.utils.cluster.Cluster`.
        count: how many processes; None: as many as the cluster has cores (GPUs, if the module is on one) for.
        module: that is being trained.
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
        make = partial(_RoundPlayer, module.copy_for_rollouts(), **settings)
        gpu = module.device.type == "cuda"
        self._workers: Workers[Sequence[Start], Piece] = Workers(address, count, make, gpu=gpu)

    def play(self, pieces: Sequence[Sequence[Start]], number: int) -> list[Piece]:
        """Play a round with the present weights.

        Args:
            pieces: starts of the episodes that are played together.
            number: of the round.

        Raises:
            UserError: as `lmrl.utils.cluster.Workers.map`.
        """
        weights: dict[str, NDArray[np.uint8]] = {}
        for name, tensor in _tensors(self._module.copy_for_rollouts()).items():
            # As bytes: numpy has no bfloat16.
            weights[name] = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        return list(self._workers.map(pieces, _Weights(number, weights)))

    def close(self) -> None:
        """End the processes."""
        self._workers.close()


class _RoundPlayer:
    """A worker in a process of a cluster that plays pieces of rounds."""

    def __init__(
        self,
        module: LanguageModule,
        task: str,
        env: Mapping[str, Any],
        slots: int,
        decoding: Mapping[str, Any],
    ) -> None:
        self._module = module
        self._make_env: Callable[[], Any] = environment(task, env)
        self._task = task
        self._slots = slots
        self._decoding = decoding
        self._number: int | None = None

    def __call__(self, piece: Sequence[Start], weights: _Weights) -> Piece:
        # A worker plays several pieces of a round, and loads its weights with the first.
        if weights.number != self._number:
            self._load(weights)
        return play_piece(self._policy, self._make_env, piece, self._task, self._slots)

    @torch.no_grad()
    def _load(self, weights: _Weights) -> None:
        for name, tensor in _tensors(self._module).items():
            received = torch.from_numpy(weights.bytes[name].copy())  # arrays of the object store are read-only
            tensor.copy_(received.view(tensor.dtype).view(tensor.shape))
        self._policy = policy_of(self._module, self._decoding)
        self._number = weights.number


def _tensors(module: LanguageModule) -> dict[str, Tensor]:
    """All parameters and buffers, also those that are in no state dict."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}
