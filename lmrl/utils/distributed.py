"""Processes that train one model together: who this one is, and work that they share."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lmrl.errors import UserError

__all__ = [
    "all_gather_objects",
    "is_first_process",
    "map_over_ranks",
    "on_first_rank",
    "rank_and_world_size",
    "shared_work",
]

T = TypeVar("T")
R = TypeVar("R")


class SharedWork:
    """The share of `map_over_ranks` on which this process works, which it may leave at any moment."""

    def __init__(self) -> None:
        self.is_under_way = False
        #: Asked when a share begins: whether it is called off, as if Ctrl-C had come in the middle of it.
        self.is_called_off: Callable[[], bool] | None = None


shared_work = SharedWork()


def rank_and_world_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes: ``(0, 1)`` where one works alone."""
    # A process group exists only if this module was imported. An evaluation without a model does not load torch.
    dist = sys.modules.get("torch.distributed")
    together = dist is not None and dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if dist is not None and together else (0, 1)


def is_first_process() -> bool:
    """Return whether this is the first of the processes that train together, also before they have connected.

    Lightning knows it from the environment variables of the launcher.
    """
    # Looked up, not imported: commands without a model load no Lightning.
    rank_zero = sys.modules.get("lightning.fabric.utilities.rank_zero")
    return rank_zero is None or getattr(rank_zero.rank_zero_only, "rank", 0) == 0


def all_gather_objects(mine: T) -> list[T]:
    """Return the objects of all processes in rank order. Every process must call it, and waits for the last."""
    _, world = rank_and_world_size()
    if world == 1:
        return [mine]
    gathered: list[Any] = [None] * world
    sys.modules["torch.distributed"].all_gather_object(gathered, mine)
    return gathered


def map_over_ranks(items: Sequence[T], work: Callable[[Sequence[T]], Sequence[R]]) -> list[R]:
    """Let every process work on its share of the items, and give all of them all results.

    Shares need not take equally long: who is done waits for the others. If one fails, all do, so that none waits for
    ever; an error on one process is an error on all, and so is Ctrl-C.

    Args:
        items: the same on all processes. Process ``r`` of ``n`` gets items ``r``, ``r + n``, ...
        work: one result per item, in their order. It must not communicate.

    Returns:
        One result per item, in their order, whatever the number of processes.

    Raises:
        UserError: the work of another process failed. An error of this one is handed on.
        KeyboardInterrupt: the work of one of them was interrupted.
    """
    rank, world = rank_and_world_size()
    mine: Sequence[R] = ()
    error: Exception | KeyboardInterrupt | None = None
    try:
        shared_work.is_under_way = True
        if shared_work.is_called_off is not None and shared_work.is_called_off():
            raise KeyboardInterrupt
        mine = work(items[rank::world])
    except (Exception, KeyboardInterrupt) as raised:
        error = raised
    shared_work.is_under_way = False
    failure = None if error is None else f"{type(error).__name__}: {error}"
    parts = all_gather_objects((list(mine), failure, isinstance(error, KeyboardInterrupt)))
    # Ctrl-C goes before errors: the processes save together afterwards, so all of them have to leave in the same way.
    if any(interrupted for _, _, interrupted in parts):
        raise KeyboardInterrupt
    if error is not None:
        raise error
    for other, (_, failure, _) in enumerate(parts):
        if failure is not None:
            raise UserError(f"process {other} of {world} failed: {failure}")
    # Undo the dealing: process r had items r, r + world, ...
    results = []
    for index in range(len(items)):
        shares, _, _ = parts[index % world]
        results.append(shares[index // world])
    return results


def on_first_rank(work: Callable[[], R]) -> R:
    """Let the first process do some work, for which the others wait, and give all processes its result.

    Args:
        work: called by the first process alone. It must not communicate.

    Raises:
        UserError: as `map_over_ranks`.
        KeyboardInterrupt: as `map_over_ranks`.
    """
    results: list[Any] = []

    def keep(share: Sequence[None]) -> Sequence[None]:
        results.extend(work() for _ in share)
        return share

    map_over_ranks([None], keep)  # the only item is in the share of the first process
    _, world = rank_and_world_size()
    if world > 1:
        # What all processes gather is padded to the largest part, so the result itself is sent once.
        results = results or [None]
        sys.modules["torch.distributed"].broadcast_object_list(results)
    result: R = results[0]
    return result
