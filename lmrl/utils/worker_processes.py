"""Processes of this machine that do the same with many items, and return results in the order of the items."""

import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, NamedTuple, TypeVar

import cloudpickle

from lmrl.errors import UserError, check_range

__all__ = ["WorkerProcesses"]

T = TypeVar("T")
R = TypeVar("R")

_DEATHS = 3


class _Worker(NamedTuple):
    process: Any
    connection: Connection


class WorkerProcesses(Generic[T, R]):
    """What `lmrl.utils.cluster.Workers` is, by processes of this machine and without Ray.

    A process that dies is replaced, and its item begun again. All end with the process that has started them, whatever
    ended that one.

    Args:
        count: how many processes.
        make: called once in each process; makes what is called with an item and what is common. Sent by `cloudpickle`,
            so it may be defined in a notebook. A script that uses workers needs ``if __name__ == "__main__"``.

    Raises:
        UserError: fewer than one process.
    """

    def __init__(self, count: int, make: Callable[[], Callable[..., R]]) -> None:
        check_range("[1, inf)", workers=count)
        self.count = count
        # Through files, since a pipe would hold what is common once for each process.
        self._folder = TemporaryDirectory(prefix="lmrl-workers-", ignore_cleanup_errors=True)
        self._make = self._write("make", make)
        self._commons = 0
        self._idle: list[_Worker] = []
        self._working: dict[Connection, _Worker] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """End the processes; a `map` that is under way in another thread ends with an error."""
        with self._lock:
            self._is_closed = True
            workers = [*self._idle, *self._working.values()]
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
        self._folder.cleanup()

    def map(self, items: Sequence[T], *common: Any) -> Iterator[R]:
        """Apply the function to each item and return the results in order.

        Results do not pile up: the number of items that run ahead of the oldest unfinished one is limited.

        Args:
            items: each is sent to one process.
            common: further arguments for all items, which each process reads once.

        Raises:
            UserError: processes die over the same item again and again, or were ended by `close`. What the work raises
                is handed on.
        """
        self._commons += 1
        shared = self._write(f"common-{self._commons}", common)
        try:
            yield from self._results(items, shared)
        finally:
            shared.unlink(missing_ok=True)

    def _results(self, items: Sequence[T], shared: Path) -> Iterator[R]:
        waiting = deque(enumerate(items))
        running: dict[Connection, tuple[int, T]] = {}
        done: dict[int, R] = {}
        deaths: Counter[int] = Counter()
        for position in range(len(items)):
            while position not in done:
                # Give work to free processes, but do not run far ahead of the result that is needed next.
                while waiting and len(running) < self.count and waiting[0][0] <= position + 2 * self.count:
                    index, item = waiting.popleft()
                    connection = self._send(item, shared)
                    running[connection] = index, item
                for ready in wait([*running]):
                    assert isinstance(ready, Connection)
                    index, item = running.pop(ready)
                    try:
                        result, raised = cloudpickle.loads(ready.recv_bytes())
                    except (EOFError, OSError):  # the process died, so another one begins its item again
                        self._bury(ready)
                        deaths[index] += 1
                        if deaths[index] == _DEATHS:
                            raise UserError(
                                f"a worker process died {_DEATHS} times over the same episodes: it was killed, or "
                                "memory ran out, of which fewer workers need less"
                            ) from None
                        waiting.appendleft((index, item))
                        continue
                    with self._lock:
                        self._idle.append(self._working.pop(ready))
                    if raised is not None:
                        raise raised
                    done[index] = result
            yield done.pop(position)

    def _send(self, item: T, shared: Path) -> Connection:
        """Give an item to a free process, or to a new one."""
        with self._lock:
            if self._is_closed:
                raise UserError("the worker processes have been ended")
            worker = self._idle.pop() if self._idle else self._start()
            self._working[worker.connection] = worker
        try:
            worker.connection.send_bytes(cloudpickle.dumps((item, shared)))
        except OSError:
            pass  # it has died meanwhile, which reading from it will show
        return worker.connection

    def _start(self) -> _Worker:
        # Neither threads nor a GPU survive a fork.
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self._make), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def _bury(self, connection: Connection) -> None:
        with self._lock:
            worker = self._working.pop(connection)
        connection.close()
        worker.process.join()

    def _write(self, name: str, value: Any) -> Path:
        file = Path(self._folder.name) / name
        with file.open("wb") as stream:
            cloudpickle.dump(value, stream)
        return file


def _work(connection: Connection, make: Path) -> None:
    """The life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that has started this one
    parent = parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    function: Callable[..., Any] | None = None
    common: tuple[Any, ...] = ()
    read_from: Path | None = None
    while True:
        item, shared = cloudpickle.loads(connection.recv_bytes())
        result = None
        raised: Exception | None = None
        try:
            if function is None:
                function = _read(make)()
            if shared != read_from:
                common = _read(shared)
                read_from = shared
            result = function(item, *common)
        except Exception as error:
            raised = _portable(error)
        connection.send_bytes(cloudpickle.dumps((result, raised)))  # classes of notebooks go by value


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _read(file: Path) -> Any:
    with file.open("rb") as stream:
        return cloudpickle.load(stream)


def _portable(error: Exception) -> Exception:
    """An error that can be sent: some cannot be made again from their arguments."""
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return UserError(f"{type(error).__name__} in a worker process: {error}")
    return error
