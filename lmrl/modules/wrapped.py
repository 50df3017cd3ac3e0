"""Weights in shards by the older `FullyShardedDataParallel`, in which Lightning's strategy ``fsdp`` wraps a module."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import lightning as L
from lightning.pytorch.strategies import FSDPStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

from lmrl.errors import UserError

__all__ = ["prepare", "total_norm", "unwrapped", "wrapper_of"]


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
    """Inside, every process holds all weights, and none of the parts is wrapped: see `lmrl.modules.sharding.whole`.

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
