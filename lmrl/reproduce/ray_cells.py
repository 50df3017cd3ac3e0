"""Cells as tasks of a Ray cluster, which runs each where cores are free."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lmrl.errors import UserError, in_one_line
from lmrl.reproduce.plan import Cell, Order
from lmrl.reproduce.processes import LMRL, CommandFailed, Processes
from lmrl.reproduce.schedule import Running, run_cell
from lmrl.utils.cluster import Cluster

__all__ = ["RayCells"]

_RETRIES = 3
"""How often a cell is started again if its process or machine dies; its training resumes from the last checkpoint."""


def _run(folder: str, cell: Cell, order: Order, launcher: Sequence[str] | None, threads: int) -> dict[str, Any] | str:
    """Run a cell as a Ray task; return its record, or the reason of its failure."""
    try:
        os.chdir(folder)
    except OSError as error:
        return f"cells need the folder of the command on every machine of the cluster: {in_one_line(error)}"
    with Processes(1, LMRL if launcher is None else launcher, threads) as processes:
        try:
            return run_cell(cell, order, processes)
        except (CommandFailed, OSError, UserError) as error:
            return str(error)


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """A task of Ray, with the interface of `lmrl.reproduce.schedule.Running`."""

    cluster: Cluster
    reference: Any

    def exception(self) -> BaseException | None:
        try:
            result = self.cluster.get(self.reference)
        except self.cluster.Died as error:
            return CommandFailed(f"its process ended without a result: {in_one_line(error)}")
        return CommandFailed(result) if isinstance(result, str) else None  # see `_run`

    def result(self) -> dict[str, Any]:
        record: dict[str, Any] = self.cluster.get(self.reference)
        return record


class RayCells:
    """Runs cells as tasks of Ray, which starts each of them when it has cores for it.

    A cell takes as many cores as a worker has threads (`lmrl.utils.cluster.worker_threads`), and one GPU if trained
    policies are evaluated on one. Tasks end with this process; the next one resumes from their checkpoints.

    Args:
        order: the order that the cells were planned from.
        address: see `lmrl.utils.cluster.Cluster`.
        jobs: number of cells that run at once; None: as many as there are cores for.
        launcher: the command in front of the arguments of a step; None: that of the machine.

    Raises:
        UserError: as `lmrl.utils.cluster.Cluster`.
    """

    def __init__(self, order: Order, address: str, jobs: int | None, launcher: Sequence[str] | None = None) -> None:
        self._order = order
        self._jobs = jobs
        self._launcher = None if launcher is None else tuple(launcher)
        self._cluster = Cluster(address)
        self._task = self._cluster.remote(_run, gpu=order.preset.on_gpu, max_retries=_RETRIES)
        self._references: list[Any] = []

    def free(self, running: int) -> int | None:
        return None if self._jobs is None else self._jobs - running

    def start(self, cells: Sequence[Cell]) -> list[Running]:
        started: list[Running] = []
        for cell in cells:
            # Paths are relative to the folder of the command, also on other machines.
            folder = os.getcwd()
            reference = self._task.remote(folder, cell, self._order, self._launcher, self._cluster.threads)
            self._references.append(reference)
            started.append(_Task(self._cluster, reference))
        return started

    def ended(self, running: Sequence[Running]) -> list[Running]:
        tasks = {task.reference: task for task in running if isinstance(task, _Task)}
        done = self._cluster.wait(list(tasks), seconds=1.0)
        return [tasks[reference] for reference in done]

    def close(self) -> None:
        """Cancel what still runs, and leave the cluster."""
        for reference in self._references:
            self._cluster.cancel(reference)
        self._cluster.close()
