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
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

STRATEGIES = ("ddp", "fsdp")

_ROOT = Path(__file__).parents[2]
#: What the server of forks imports once for all of its processes. It skips what cannot be imported.
_PRELOAD = (
    "tests.conftest", "lmrl.cli", "peft", "tests.callbacks.test_ranks", "tests.modules.test_ranks_lora",
    "tests.test_golden_runs",
)  # fmt: skip


def strategy(name: str, world: int = 2, **settings: Any) -> Strategy | str:
    if name == "fsdp":
        return ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1, **settings)
    return DDPStrategy(process_group_backend="gloo") if name == "ddp" else "auto"


def fork_context() -> ForkServerContext:
    """Return a context whose processes are forks of a server that has imported the packages already.

    The server has no threads: a lock that a thread of this process holds would never be released in its own fork.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOAD])
    # The server begins in the working directory, which need not be that of the repository. In Python 3.11 it ignores
    # the path of this process, and a module that it does not find would be imported again by each of its forks.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *([before] if before else [])])
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def on_ranks(work: Callable[..., Any], *arguments: Any, world: int = 2, seconds: float = 300.0) -> list[Any]:
    """Run a function on each of `world` processes, which talk by gloo, and return the results.

    Raises:
        AssertionError: a process failed (with its traceback), or they were not done in time.
    """
    port = _free_port()
    context = fork_context()
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
