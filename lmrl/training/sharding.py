"""Weights in shards, one on each process, and whole again where something has to be read outside of a step.

Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", in the per-parameter form of
``torch.distributed.fsdp.fully_shard``.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, cast

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from lmrl.distributed import place
from lmrl.errors import UserError
from lmrl.models.heads import ValueHead

__all__ = [
    "is_sharded",
    "prepare",
    "shard",
    "total_norm",
    "unwrapped",
    "whole",
    "whole_tensor",
    "whole_weights",
    "wrapper_of",
]


def prepare(trainer: L.Trainer, name: str, allowed: bool) -> None:
    """Have the strategy ``fsdp`` keep weights, rewards and sums in float32, as others do; nothing for other strategies.

    Args:
        trainer: its precision says in what a transformer computes.
        name: of the algorithm.
        allowed: whether it is one whose weights are used in steps alone, and not shared.

    Raises:
        UserError: for an algorithm that is not, or for weights in half precision.
    """
    strategy = trainer.strategy
    if not isinstance(strategy, FSDPStrategy):
        return
    instead = "use ModelParallelStrategy (configs/scale/fsdp.yaml)"
    if not allowed:
        raise UserError(f"strategy fsdp trains BC, filtered BC and MC, without lora, and not {name}: {instead}")
    if strategy.precision_plugin.precision in ("16-true", "bf16-true"):
        raise UserError(f"strategy fsdp would keep values in half precision too: {instead}, or bf16-mixed")
    strategy.mixed_precision = strategy.mixed_precision or MixedPrecision()  # autocast alone lowers the precision


def wrapper_of(module: nn.Module) -> FullyShardedDataParallel | None:
    """What the strategy of its trainer has wrapped a module in, if it has."""
    trainer = getattr(module, "_trainer", None) if isinstance(module, L.LightningModule) else None
    found = None if trainer is None else trainer.strategy.model
    return found if isinstance(found, FullyShardedDataParallel) else None


def total_norm(wrapper: FullyShardedDataParallel) -> Tensor:
    """Of all gradients; all processes have to call it."""
    return wrapper.clip_grad_norm_(math.inf)  # clips nothing


@contextmanager
def unwrapped(module: nn.Module, wrapper: FullyShardedDataParallel, but: Sequence[str] = ()) -> Iterator[None]:
    """Inside, every process holds all weights, and none of the parts is wrapped: see `lmrl.training.sharding.whole`.

    A wrapper would refuse a forward pass while its weights are gathered by hand, so what it wraps takes its place.
    """
    left = {id(part) for name in but for part in getattr(module, name).modules()}
    parts = [part for part in FullyShardedDataParallel.fsdp_modules(wrapper) if id(part) not in left]
    places = [
        (holder, name, part)
        for holder in module.modules()
        for name, part in holder.named_children()
        if isinstance(part, FullyShardedDataParallel) and id(part) not in left
    ]
    with ExitStack() as gathered:
        for part in parts:
            gathered.enter_context(FullyShardedDataParallel.summon_full_params(part, recurse=False, writeback=False))
        for holder, name, part in places:
            holder.register_module(name, part.module)
        try:
            yield
        finally:
            for holder, name, part in places:
                holder.register_module(name, part)


#: What runs between the hooks that gather the weights of the module itself: embeddings, norms and vocabulary heads.
_STEPS = ("training_step", "validation_step", "experience")


def is_sharded(module: nn.Module) -> bool:
    """Whether its weights are in shards."""
    return isinstance(module, FSDPModule)


def shard(module: nn.Module, mesh: DeviceMesh) -> None:
    """Leave on each process of a mesh its share of all parameters, and have them gathered in parts when they are used.

    The parts are the blocks of language models, value heads, trunks without a vocabulary head, and the rest. The
    weights are those of the first process; the others need not hold any (`weights_on_first_process`).

    Copies that share what never learns (`lmrl.models.heads`) share its shards.

    Args:
        module: its children stay what they are; it gets the methods of an `FSDPModule`. What learns within a part has
            one precision.
        mesh: of one dimension.
    """
    parts = [*_parts(module), module]
    shared = _shared(parts)
    weights = dict(module.state_dict()) if place()[0] == 0 else {}
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)  # gradients of many processes, in whatever precision
    for places in shared:
        _share(places)
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy)
        if isinstance(part, ValueHead):
            for name in ("taken", "score_taken"):
                register_fsdp_forward_method(part, name)
    for name in _STEPS:
        if hasattr(module, name):
            register_fsdp_forward_method(module, name)
    _fill(module, weights, mesh.device_type)
    for places in shared:  # each part has made shards of its own
        _share(places)


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
            if part_of.setdefault(holder, number) == number:
                for name, parameter in holder.named_parameters(recurse=False):
                    if not parameter.requires_grad:
                        places.setdefault(id(parameter), []).append(_Place(number, holder, name))
    return [found for found in places.values() if len({place.part for place in found}) > 1]


def _share(places: Sequence[_Place]) -> None:
    """Have each part hold a parameter of its own, in the memory of the first: FSDP2 takes no other sharing."""
    first = places[0].holder.get_parameter(places[0].name)
    made = {places[0].part: first}
    for part, holder, name in places:
        own = made.setdefault(part, nn.Parameter(first.detach(), requires_grad=False))
        holder.register_parameter(name, own)


def _fill(module: nn.Module, weights: dict[str, Any], device: str) -> None:
    """Hand all processes their share of what the first one holds."""
    if any(parameter.is_meta for parameter in module.parameters()):
        module.to_empty(device=device)
    set_model_state_dict(
        module, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, cpu_offload=False)
    )
    for _, buffer in module.named_buffers():  # those that no state dict holds too
        dist.broadcast(buffer, 0)


def _parts(module: nn.Module) -> list[nn.Module]:
    """What is gathered by itself, inner parts first."""
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    blocks = {name for model in models for name in (model._no_split_modules or ())}
    found = [part for part in module.modules() if type(part).__name__ in blocks or isinstance(part, ValueHead)]
    speaking = {id(model.base_model) for model in models if model.base_model is not model}
    return found + [model for model in models if model.base_model is model and id(model) not in speaking]


@contextmanager
def whole(module: nn.Module, but: Sequence[str] = ()) -> Iterator[None]:
    """Inside, every process holds all weights, and forward passes need no other process.

    All processes have to enter and leave together; what they do in between is their own. It takes the memory of the
    whole weights. Nothing happens if the module is not sharded.

    Args:
        module: that was given to `shard`, or is wrapped by the strategy ``fsdp``.
        but: names of children that stay in shards.
    """
    if (wrapper := wrapper_of(module)) is not None:
        with unwrapped(module, wrapper, but):
            yield
        return
    if not is_sharded(module):
        yield
        return
    module()  # the first to run becomes the root of all
    left = {id(part) for name in but for part in getattr(module, name).modules()}
    parts = [part for part in module.modules() if isinstance(part, FSDPModule) and id(part) not in left]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(part is not module, recurse=False)


def whole_weights(module: nn.Module) -> dict[str, Tensor] | None:
    """The whole state dict on the CPU of the first process, empty on the others; None if the module is not sharded.

    All processes have to call it. One tensor at a time is gathered.
    """
    if not is_sharded(module):
        return None
    found = get_model_state_dict(module, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return cast(dict[str, Tensor], found)


def whole_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor, on every process; all have to call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
