"""Work that is spread over the processes of a Ray cluster, of this machine or of many, and comes back in order.

Ray (Moritz et al. 2018, "Ray: A Distributed Framework for Emerging AI Applications") is imported when it is asked for.
"""

import logging
import os
import re
import signal
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from threading import current_thread, main_thread
from typing import Any, Generic, TypeVar

from lmrl.errors import UserError, check_range, in_one_line

__all__ = ["Cluster", "Workers", "available_cores", "worker_environment", "worker_threads"]

T = TypeVar("T")
R = TypeVar("R")

_DEATHS = 3
_ADDRESS = re.compile(r"local|auto|(?:ray://)?(?P<host>[^\s/:]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
_SECONDS = 10.0
_BEGIN = "begin one (ray start --head), or take --ray local"
_JOIN = "is it one of this version of Ray, and does it ask for a token (RAY_AUTH_MODE=token)?"
# Variables of the environment that workers get, besides threads and the paths of modules.
_HANDED_ON = ("LMRL_DATA", "LMRL_MODULES", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HOME")


def worker_threads() -> int:
    """Return the number of threads of each worker: ``$OMP_NUM_THREADS`` of this process, or else one.

    Sums of floating-point numbers can depend on it, so it must not follow from the machine that a worker is on.
    """
    given = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(given)) if given.isdecimal() else 1


def worker_environment() -> dict[str, str]:
    """Return the environment variables of a worker: its number of threads, and the paths of modules and data.

    Ray hands on neither. What belongs to the interpreter is left out: other machines have their own.
    """
    threads = str(worker_threads())
    environment = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false"}
    # The user's own folders, e.g. with a module of a partner. The environment of Python is that of each machine.
    folders = []
    for folder in sys.path:
        absolute = os.path.abspath(folder)
        is_python = folder.startswith((sys.prefix, sys.base_prefix)) or "site-packages" in absolute
        if not is_python and absolute not in folders:
            folders.append(absolute)
    return {**environment, "PYTHONPATH": os.pathsep.join(folders)}


def _ray() -> Any:
    # Ray reports its usage to its makers unless this is set.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or every start warns of it
    try:
        return import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise UserError("ray needs the package ray: pip install 'lmrl[ray]'") from error


def available_cores() -> int:
    """Return the cores that this process may use, which in a container can be fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


class Cluster:
    """A Ray cluster that this process joins, unless it is in one already.

    Args:
        address: ``local`` begins one on this machine that ends with this process, ``auto`` is the one that
            ``ray start`` began here, ``HOST:PORT`` any other (``ray://HOST:PORT`` through Ray's client server).
        cores: number of cores that a local cluster is to have at least.

    Raises:
        UserError: another form of address, no Ray, or nothing at that address that can be joined.
    """

    def __init__(self, address: str, cores: int = 0) -> None:
        parts = _ADDRESS.fullmatch(address)
        if parts is None:
            raise UserError(f"ray must be local, auto or HOST:PORT, got {address!r:.80}")
        self._ray = _ray()
        self.threads = worker_threads()
        self.Died: type[Exception] = self._ray.exceptions.RayError
        self._joined = not self._ray.is_initialized()
        if not self._joined:
            return
        if parts["host"] is not None:
            # Ray ends this process if no cluster answers at the port, so try it first.
            try:
                socket.create_connection((parts["host"].strip("[]"), int(parts["port"])), _SECONDS).close()
            except (OSError, OverflowError, UnicodeError) as error:  # UnicodeError: no name of a host
                raise UserError(f"no Ray cluster at {address}: {in_one_line(error)}; is it running?") from error
        settings: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            settings |= {"num_cpus": max(cores, available_cores()), "include_dashboard": False}
        before = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(**settings)
        except Exception as error:  # several kinds: no cluster, another version, a token that is not right
            way_out = _BEGIN if address == "auto" else _JOIN
            reason = in_one_line(error, 200).rstrip(".")
            raise UserError(f"no Ray cluster at {address}: {reason}; {way_out}") from error
        # Ray installs its own handler of SIGTERM, but a training that gets the signal has to save first.
        if before is not None and current_thread() is main_thread():
            signal.signal(signal.SIGTERM, before)

    def room(self, gpu: bool) -> int:
        """Return the number of processes that there are cores for, or GPUs; at least one."""
        available = self._ray.cluster_resources().get("GPU" if gpu else "CPU", 0.0)
        return max(1, int(available) // (1 if gpu else self.threads))

    def remote(self, work: Any, *, gpu: bool = False, **options: Any) -> Any:
        """A function or class as Ray's: it takes a core for each of its threads, and has `worker_environment`.

        Args:
            work: found by its name in the processes of the cluster, or sent to them.
            gpu: whether it takes one.
            **options: more arguments of Ray's ``options``.
        """
        resources = {"num_cpus": self.threads, "num_gpus": 1 if gpu else 0}
        environment = {"env_vars": worker_environment()}
        return self._ray.remote(work).options(runtime_env=environment, **resources, **options)

    def put(self, value: Any) -> Any:
        """A reference to a value, which is then in the object store."""
        return self._ray.put(value)

    def get(self, reference: Any) -> Any:
        """Return the value behind a reference.

        Raises:
            Cluster.Died: the process that was to make it has died. What it has raised itself is handed on.
        """
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from error
            raise

    def wait(self, references: Sequence[Any], seconds: float | None = None) -> list[Any]:
        """Wait for one result, at most the given seconds (None: without limit), and return the finished ones."""
        done: list[Any] = self._ray.wait([*references], num_returns=1, timeout=seconds)[0]
        return done

    def kill(self, actor: Any) -> None:
        """End a process."""
        self._ray.kill(actor)

    def cancel(self, reference: Any) -> None:
        """End the process that makes what a reference stands for; nothing happens if that is there."""
        self._ray.cancel(reference, force=True)

    def close(self) -> None:
        """Leave the cluster if it was joined here; a local one ends."""
        if self._joined:
            self._ray.shutdown()
        self._joined = False


class _Actor:
    """A worker process. It makes its function when the first item comes, and keeps it."""

    def __init__(self, folder: str) -> None:
        with suppress(OSError):  # another machine need not have it; then names of files have to be absolute
            os.chdir(folder)
        self._work: Callable[..., Any] | None = None

    def call(self, make: Callable[[], Callable[..., Any]], item: Any, *common: Any) -> Any:
        if self._work is None:
            self._work = make()
        return self._work(item, *common)


class Workers(Generic[T, R]):
    """Processes of a Ray cluster that do the same with many items; results come in the order of the items.

    A result must be a function of the item and of what is common to all: which process works on it, and how many there
    are, follows from when they are free. A process that dies is replaced, and its item begun again.

    Each takes as many cores of the cluster as it computes with threads (`worker_threads`), and waits until they are
    free. Use it in a ``with`` block; at its end the processes end.

    Args:
        address: see `Cluster`.
        count: how many processes; None: as many as the cluster has cores for.
        make: called once in each process; makes what is called with an item and what is common.
        gpu: each process takes a GPU of the cluster.

    Raises:
        UserError: as `Cluster`, or fewer than one process.
    """

    def __init__(
        self, address: str, count: int | None, make: Callable[[], Callable[..., R]], *, gpu: bool = False
    ) -> None:
        check_range("[1, inf)", workers=count)
        self._cluster = Cluster(address, worker_threads() * (count or 1))
        self.count = self._cluster.room(gpu) if count is None else count
        self._kind = self._cluster.remote(_Actor, gpu=gpu, max_restarts=0)
        self._make = self._cluster.put(make)
        self._actors: list[Any] = []
        self._idle: list[Any] = []
        self._deaths: Counter[int] = Counter()

    def __enter__(self) -> "Workers[T, R]":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, and leave the cluster if it was joined for them."""
        for actor in self._actors:
            self._cluster.kill(actor)
        self._actors = []
        self._idle = []
        self._cluster.close()

    def map(self, items: Sequence[T], *common: Any) -> Iterator[R]:
        """Apply the function to each item and return the results in order.

        Results do not pile up: the number of items that run ahead of the oldest unfinished one is limited.

        Args:
            items: each is sent to one process.
            common: further arguments for all items; put into the object store once.

        Raises:
            UserError: processes die over the same item again and again. What the work raises is handed on.
        """
        references = list(map(self._cluster.put, common))
        waiting = deque(enumerate(items))
        running = dict[Any, tuple[int, T, Any]]()  # by the reference of the result
        done = dict[int, R]()
        self._deaths.clear()
        for position in range(len(items)):
            while position not in done:
                # Give work to free processes, but do not run far ahead of the result that is needed next.
                while waiting and len(running) < self.count and waiting[0][0] <= position + 2 * self.count:
                    index, item = waiting.popleft()
                    actor = self._actor()
                    running[actor.call.remote(self._make, item, *references)] = index, item, actor
                for ended in self._cluster.wait([*running]):
                    index, item, actor = running.pop(ended)
                    if self._take(ended, index, done):
                        self._idle.append(actor)
                    else:  # the process died, so another one begins its item again
                        self._actors.remove(actor)
                        waiting.appendleft((index, item))
            yield done.pop(position)

    def _actor(self) -> Any:
        if self._idle:
            return self._idle.pop()
        self._actors.append(self._kind.remote(os.getcwd()))
        return self._actors[-1]

    def _take(self, ended: Any, index: int, done: dict[int, R]) -> bool:
        """Note a result; return whether its process is alive."""
        try:
            done[index] = self._cluster.get(ended)
        except self._cluster.Died as error:
            self._deaths[index] += 1
            if self._deaths[index] == _DEATHS:
                raise UserError(
                    f"a worker died {_DEATHS} times over the same episodes: it was killed, or memory ran out, of which "
                    f"fewer workers on a machine need less ({in_one_line(error, 200)})"
                ) from error
            return False
        return True
