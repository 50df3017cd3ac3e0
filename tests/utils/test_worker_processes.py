"""Processes of this machine: results in order, none lost, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from lmrl.errors import UserError
from lmrl.utils.worker_processes import WorkerProcesses
from tests.helpers.clusters import Dying, refusing, squares


@pytest.fixture
def none_left() -> Iterator[None]:
    yield
    assert not [process for process in children(os.getpid()) if "spawn_main" in process]


def children(parent: int) -> list[str]:
    """The command lines of all processes that one has started."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append((entry / "cmdline").read_text())
        except OSError:  # it has ended meanwhile
            continue
    return found


@pytest.mark.usefixtures("none_left")
def test_results_come_in_the_order_of_their_items() -> None:
    with closing(WorkerProcesses[int, tuple[int, int, int]](2, squares)) as workers:
        found = [*workers.map(range(9))]
        again = [*workers.map([5])]
    assert [square for square, _, _ in found] == [number**2 for number in range(9)]
    processes = {process for _, process, _ in found}
    assert len(processes) == 2 and os.getpid() not in processes
    assert again[0][1] in processes and again[0][2] > 1, "they stay, and keep what they were made with"


def weighing() -> Callable[..., Any]:
    return lambda item, *common: (item, common)


def test_what_is_common_is_that_of_each_call() -> None:
    with closing(WorkerProcesses[int, Any](1, weighing)) as workers:
        assert [*workers.map([1, 2], "weights", 7)] == [(1, ("weights", 7)), (2, ("weights", 7))]
        assert [*workers.map([3], "newer")] == [(3, ("newer",))]


@pytest.mark.usefixtures("none_left")
def test_the_item_of_a_process_that_dies_is_begun_anew(tmp_path: Path) -> None:
    for name in ("die-1", "die-2"):
        (tmp_path / name).touch()
    with closing(WorkerProcesses[int, int](2, Dying(tmp_path))) as workers:
        assert [*workers.map(range(6))] == [*range(6)]
    assert not [*tmp_path.iterdir()]


def test_processes_that_die_again_and_again_are_told_of(tmp_path: Path) -> None:
    for name in range(3):
        (tmp_path / f"die-{name}").touch()
    with (
        closing(WorkerProcesses[int, int](1, Dying(tmp_path))) as workers,
        pytest.raises(UserError, match="a worker process died 3 times over the same episodes"),
    ):
        [*workers.map([1, 3])]


class Unsendable(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


def failing() -> Callable[[int], int]:
    def fail(number: int) -> int:
        raise Unsendable("no", "luck")

    return fail


def test_errors_are_those_of_one_process() -> None:
    for make, said in ((refusing, "^there is no such policy$"), (failing, "^Unsendable in a worker process: no luck$")):
        with closing(WorkerProcesses[int, int](1, make)) as workers, pytest.raises(UserError, match=said):
            [*workers.map([1])]


def of_a_notebook() -> Callable[[int], Any]:
    """Return a function whose results and errors are of a class that no module has, as in a notebook."""

    class Stuck(RuntimeError):
        pass

    def work(number: int) -> Any:
        if number:
            raise Stuck("at a wall")
        return Stuck("as a result")

    return work


def test_results_and_errors_may_be_of_classes_of_a_notebook() -> None:
    with closing(WorkerProcesses[int, Any](1, of_a_notebook)) as workers:
        (result,) = workers.map([0])
        assert type(result).__name__ == "Stuck"
        with pytest.raises(RuntimeError, match="at a wall"):
            [*workers.map([1])]


def sleeping() -> Callable[[int], int]:
    def sleep(number: int) -> int:
        time.sleep(60)
        return number

    return sleep


@pytest.mark.usefixtures("none_left")
def test_closing_ends_work_in_another_thread() -> None:
    workers = WorkerProcesses[int, int](1, sleeping)
    raised: list[UserError] = []

    def work() -> None:
        try:
            [*workers.map([1])]
        except UserError as error:
            raised.append(error)

    thread = Thread(target=work)
    thread.start()
    while not workers._working:
        time.sleep(0.01)
    workers.close()
    thread.join(20)
    assert not thread.is_alive()
    assert "have been ended" in str(raised[0])


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_has_started_them(how: signal.Signals) -> None:
    code = """
from lmrl.utils.worker_processes import WorkerProcesses
from tests.utils.test_worker_processes import sleeping
if __name__ == "__main__":
    workers = WorkerProcesses(2, sleeping)
    print("begun", flush=True)
    list(workers.map([1, 2]))
"""
    script = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert script.stdout is not None and script.stdout.readline() == b"begun\n"
    deadline = time.monotonic() + 30
    while len([child for child in children(script.pid) if "spawn_main" in child]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    workers = _pids(script.pid)
    script.send_signal(how)
    script.wait(20)
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _pids(parent: int) -> list[str]:
    return Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
