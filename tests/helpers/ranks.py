"""Tests on several processes, each under a time limit of its own, so that a deadlock fails."""

import faulthandler
import multiprocessing
import os
import pickle
import socket
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

STRATEGIES = ("ddp", "fsdp")


def strategy(name: str, world: int = 2, **settings: Any) -> Strategy | str:
    if name == "fsdp":
        return ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1, **settings)
    return DDPStrategy(process_group_backend="gloo") if name == "ddp" else "auto"


def on_ranks(work: Callable[..., Any], *arguments: Any, world: int = 2, seconds: float = 300.0) -> list[Any]:
    """Run a function on each of `world` processes, which talk by gloo, and return the results.

    Raises:
        AssertionError: a process failed (with its traceback), or they were not done in time.
    """
    port = _free_port()
    # Forks of a process without threads: a lock that a thread of this one holds would never be let go in its fork.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.conftest", "lmrl.cli"])
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(rank) for rank in range(world)]
        processes = [
            context.Process(target=_run, args=(rank, world, port, seconds, file, work, arguments))
            for rank, file in enumerate(files)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + seconds
        # A process that failed leaves the others waiting.
        while (
            time.monotonic() < end and any(p.is_alive() for p in processes) and not any(p.exitcode for p in processes)
        ):
            time.sleep(0.05)
        late = [rank for rank, process in enumerate(processes) if process.exitcode is None]
        for process in processes:
            process.kill()
            process.join()
        found = [pickle.loads(file.read_bytes()) if file.is_file() else None for file in files]
    errors = [error for item in found if item is not None for error in item[1:]]
    assert not errors, "\n".join(errors)
    assert not late, f"processes {late} were not done after {seconds} s"
    return [item[0] for item in found]


def _run(
    rank: int, world: int, port: int, seconds: float, file: Path, work: Callable[..., Any], arguments: Any
) -> None:
    faulthandler.dump_traceback_later(seconds * 0.9)
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), GROUP_RANK="0", WORLD_SIZE=str(world))
    os.environ.update(LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(TORCHELASTIC_RUN_ID="test")  # as torchrun sets them: Lightning starts no processes itself
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: tuple[Any, ...] = (work(*arguments),)
    except BaseException:
        found = (None, f"process {rank}: {traceback.format_exc()}")
    new = file.with_suffix(".new")
    new.write_bytes(pickle.dumps(found))
    new.replace(file)
    os._exit(len(found) - 1)  # nothing to tidy up: the parent is a test session


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
