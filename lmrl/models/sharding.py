"""Weights in shards, one on each process, and the full weights where something has to be read outside of a step.

Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", in the per-parameter form of
``torch.distributed.fsdp.fully_shard``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, cast

import lightning as L
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from lmrl.errors import UserError
from lmrl.models.critic import DetachedCritic
from lmrl.models.heads import ValueHead
from lmrl.utils.distributed import rank_and_world_size

__all__ = [
    "class_of", "configure_shards", "full_state_dict", "full_tensor", "is_sharded", "shard", "summon_full_params",
]  # fmt: skip


#: Methods for which FSDP gathers the weights of the module itself: embeddings, norms and vocabulary heads.
_FORWARD_METHODS = ("training_step", "validation_step", "prepare_rollout")


def is_sharded(module: object) -> bool:
    """Whether its weights are in shards."""
    return isinstance(module, FSDPModule)


def configure_shards(module: L.LightningModule) -> None:
    """Leave on each process its share of the weights, where the strategy asks for that (`ModelParallelStrategy`).

    Raises:
        UserError: if it asks for tensors in parallel.
    """
    mesh = module.device_mesh
    if mesh is None or is_sharded(module):
        return
    if mesh["tensor_parallel"].size() > 1:
        raise UserError("tensor_parallel_size must be 1, and data_parallel_size the number of processes")
    module.trainer.precision_plugin.convert_module(module)  # too late for what is in shards
    shard(module, mesh["data_parallel"])


def class_of(module: object) -> type:
    """The class of a module before sharding, which replaces it by a subclass."""
    return next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule))


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Leave on each process of a mesh its share of all parameters, and have them gathered in parts when they are used.

    The parts are the blocks of language models, value heads, trunks without a vocabulary head, and the rest. Each
    process holds all that learns of a `DetachedCritic`. The weights are those of the first process; the others need
    not hold any (`weights_on_first_process`).

    Copies that share what never learns (`lmrl.models.heads`) share its shards.

    Args:
        module: its children stay what they are; it gets the methods of an `FSDPModule`. What learns within a part has
            one precision.
        mesh: mesh of one dimension.
    """
    whole: set[nn.Parameter] = set()
    for part in module.modules():
        if isinstance(part, DetachedCritic):  # it learns outside of the training steps
            whole.update(part.learning_parameters())
    parts = [*_parts(module), module]
    shared = _shared(parts)
    weights = dict(module.state_dict()) if rank_and_world_size()[0] == 0 else {}
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # gradients of many processes, in whatever precision
    for places in shared:
        _share(places)
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy, ignored_params=whole)
        if isinstance(part, ValueHead):
            for name in ("gather_token_scores", "gather_scores"):
                register_fsdp_forward_method(part, name)
    for name in _FORWARD_METHODS:
        if hasattr(module, name):
            register_fsdp_forward_method(module, name)
    # The first process gives all others their share of its weights.
    if any(parameter.is_meta for parameter in module.parameters()):
        module.to_empty(device=mesh.device_type)
    set_model_state_dict(
        module, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, cpu_offload=False)
    )
    for buffer in module.buffers():  # also those that no state dict holds
        dist.broadcast(buffer, 0)
    for places in shared:
        _share(places)  # again: `fully_shard` has given each part shards of its own


class _Place(NamedTuple):
    """Where a parameter is."""

    part: int
    holder: nn.Module
    name: str


def _shared(parts: Sequence[nn.Module]) -> list[list[_Place]]:
    """The places of each parameter that does not learn and is in several parts."""
    part_of: dict[nn.Module, int] = {}
    places: dict[int, list[_Place]] = {}
    for number, part in enumerate(parts):
        for holder in part.modules():
            # Inner parts come first, so an outer part finds their modules taken.
            if part_of.setdefault(holder, number) != number:
                continue
            for name, parameter in holder.named_parameters(recurse=False):
                if not parameter.requires_grad:
                    places.setdefault(id(parameter), []).append(_Place(number, holder, name))
    shared = []
    for of_parameter in places.values():
        if len({place.part for place in of_parameter}) > 1:
            shared.append(of_parameter)
    return shared


def _share(places: Sequence[_Place]) -> None:
    """Have each part hold a parameter of its own, in the memory of the first: FSDP2 takes no other sharing."""
    first = places[0].holder.get_parameter(places[0].name)
    of_part = {places[0].part: first}
    for part, holder, name in places:
        parameter = of_part.setdefault(part, nn.Parameter(first.detach(), requires_grad=False))
        holder.register_parameter(name, parameter)


def _parts(module: nn.Module) -> list[nn.Module]:
    """The parts of a module that are gathered separately, inner parts first."""
    in_critics: set[nn.Module] = set()
    for part in module.modules():
        if isinstance(part, DetachedCritic):
            in_critics.update(part.modules())
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel) and part not in in_critics]
    block_classes: set[str] = set()
    of_language_models = set()  # ids of trunks that have a vocabulary head, and are gathered with it
    for model in models:
        block_classes.update(model._no_split_modules or ())
        if model.base_model is not model:
            of_language_models.add(id(model.base_model))
    parts: list[nn.Module] = []
    for part in module.modules():
        if part not in in_critics and (isinstance(part, ValueHead) or type(part).__name__ in block_classes):
            parts.append(part)
    for model in models:
        if model.base_model is model and id(model) not in of_language_models:
            parts.append(model)
    return parts


@contextmanager
def summon_full_params(module: nn.Module, but: Sequence[str] = ()) -> Iterator[None]:
    """Inside, every process holds all weights, and forward passes need no other process.

    All processes have to enter and leave together; what they do in between is their own. It takes the memory of the
    whole weights. Nothing happens if the module is not sharded.

    Args:
        module: that was given to `shard`.
        but: names of children that stay in shards.
    """
    if not is_sharded(module):
        yield
        return
    # FSDP takes the first module that runs as the root of all. With no argument at all, torch 2.11 fails on a GPU.
    module(None)
    left_out: set[nn.Module] = set()
    for name in but:
        left_out.update(module.get_submodule(name).modules())
    parts = [part for part in module.modules() if isinstance(part, FSDPModule) and part not in left_out]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not module, recurse=False)


def full_state_dict(module: nn.Module) -> dict[str, Tensor] | None:
    """The full state dict on the CPU of the first process, empty on the others; None if the module is not sharded.

    All processes have to call it. One tensor at a time is gathered.
    """
    if not is_sharded(module):
        return None
    weights = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return cast(dict[str, Tensor], weights)


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor, on every process; all have to call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
