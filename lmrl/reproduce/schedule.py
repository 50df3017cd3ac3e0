"""Running the cells of a plan: several side by side, each after the one it starts from, told in plain lines."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from lmrl.errors import UserError
from lmrl.locks import locked
from lmrl.models.runs import set_aside
from lmrl.reproduce.cells import Cell, Step, is_done, is_finished
from lmrl.reproduce.plan import Order, dataset_of
from lmrl.reproduce.processes import CommandFailed, Processes
from lmrl.reproduce.progress import Progress
from lmrl.reproduce.record import finish
from lmrl.reproduce.standing import Standing, adopt, reached, standing

__all__ = ["run_cells"]


def run_cells(
    cells: Sequence[Cell], order: Order, processes: Processes, jobs: int, progress: Progress
) -> dict[str, str]:
    """Run every cell that is not finished; a failed one stops nothing but those that come after it.

    Args:
        cells: in an order in which each comes after the one it starts from.
        order: what they were planned from.
        processes: runs the commands; its ``with`` block must be open.
        jobs: how many cells at once.
        progress: is told what happens.

    Returns:
        Why cells failed, by their name; empty if none did.

    Raises:
        UserError: another process works on one of the cells; nothing was begun.
    """
    with ExitStack() as locks:
        for cell in cells:
            if not is_finished(cell):
                locks.enter_context(locked(cell.folder, "cell", "cell"))
        waiting = [cell for cell in cells if not is_finished(cell)]  # another process may just have ended
        progress.begin(cells, waiting)
        return _Run(order, processes, jobs, progress, waiting).run()


@dataclass(slots=True)
class _Run:
    order: Order
    processes: Processes
    jobs: int
    progress: Progress
    waiting: list[Cell]
    running: dict[Future[dict[str, Any]], Cell] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> dict[str, str]:
        # The executor is left inside the `with` block of the processes, so its threads end as soon as those are ended.
        executor = ThreadPoolExecutor(max_workers=self.jobs)
        try:
            while self.waiting or self.running:
                for cell in self._ready():
                    self.waiting.remove(cell)
                    self.progress.start(cell, standing(cell, cell.fit) if cell.fit else None)
                    self.running[executor.submit(_run, cell, self.order, self.processes)] = cell
                for future in wait(self.running, timeout=1.0, return_when=FIRST_COMPLETED).done if self.running else ():
                    self._end(self.running.pop(future), future)
                self.progress.tick(self.running.values())
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
        return self.failed

    def _ready(self) -> list[Cell]:
        """Cells to start now; those that never can are noted in `failed`."""
        for cell in [cell for cell in self.waiting if cell.after in self.failed]:
            self.waiting.remove(cell)
            self._fail(cell, f"not started, because it comes after {cell.after}")
        unfinished = {cell.name for cell in (*self.waiting, *self.running.values())}
        free = self.jobs - len(self.running)
        return [cell for cell in self.waiting if cell.after not in unfinished][:free]

    def _end(self, cell: Cell, future: Future[dict[str, Any]]) -> None:
        error = future.exception()
        if error is None:
            self.progress.end(cell, future.result())
        elif isinstance(error, (CommandFailed, OSError, UserError)):
            self._fail(cell, str(error))
        else:
            raise error

    def _fail(self, cell: Cell, why: str) -> None:
        self.failed[cell.name] = why
        self.progress.fail(cell, why)


def _run(cell: Cell, order: Order, processes: Processes) -> dict[str, Any]:
    for step in cell.steps:
        if step.name == "fit":
            _fit(cell, processes)
        elif not (is_done(cell, step) or _is_needless(cell, step, order)):
            processes.run(step, cell.folder)
    return finish(cell, order)


def _fit(cell: Cell, processes: Processes) -> None:
    assert cell.fit is not None
    found = standing(cell, cell.fit)
    if found is Standing.ADOPT:
        adopt(cell, cell.fit)
    elif found is Standing.RESUME:
        processes.run(cell.fit, cell.folder, "--ckpt_path", (cell.folder / "last.ckpt").as_posix())
    elif found is Standing.FRESH:
        with locked(cell.folder, "run folder"):  # in which somebody may be training
            set_aside(cell.folder)
        processes.run(cell.fit, cell.folder)


def _is_needless(cell: Cell, step: Step, order: Order) -> bool:
    """Whether the dataset is there already, or best and last checkpoint are one."""
    if step.name == "generate":
        return dataset_of(order, cell.task).is_file()
    if step.name != "evaluate_last":
        return False
    best, last = (reached(cell.folder / f"{name}.ckpt") for name in ("best", "last"))
    return best is None or last is None or best.step == last.step
