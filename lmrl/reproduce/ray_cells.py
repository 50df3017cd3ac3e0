"""Cells as tasks of a Ray cluster: those that are ready, each where cores are free."""

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
"""A cell whose process or machine dies is begun again so often; its training goes on from the last checkpoint."""


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
    """A task of Ray as `lmrl.reproduce.schedule.run_cells` looks at it."""

    cluster: Cluster
    reference: Any

    def exception(self) -> BaseException | None:
        try:
            told = self.cluster.get(self.reference)
        except self.cluster.Died as error:
            return CommandFailed(f"its process ended without a result: {in_one_line(error)}")
        return CommandFailed(told) if isinstance(told, str) else None

    def result(self) -> dict[str, Any]:
        record: dict[str, Any] = self.cluster.get(self.reference)
        return record


class RayCells:
    """Runs cells as tasks: what is ready at a time is handed to Ray, which begins it where there are cores for it.

    A cell takes as many cores as a worker computes with threads (`lmrl.utils.cluster.worker_threads`), and in the
    preset for GPUs one of those. If this process ends, the tasks end too; the next one resumes from their checkpoints.

    Args:
        order: what the cells were planned from.
        address: as of `lmrl.utils.cluster.Cluster`.
        jobs: how many cells run at once; None: as many as there are cores for.
        launcher: the command in front of the words of a step; None: that of the machine.

    Raises:
        UserError: as `lmrl.utils.cluster.Cluster`.
    """

    def __init__(self, order: Order, address: str, jobs: int | None, launcher: Sequence[str] | None = None) -> None:
        self._order = order
        self._jobs = jobs
        self._launcher = None if launcher is None else tuple(launcher)
        self._cluster = Cluster(address)
        gpu = order.preset.device is not None
        self._task = self._cluster.remote(_run, gpu=gpu, max_retries=_RETRIES)
        self._begun: list[Any] = []

    def free(self, running: int) -> int | None:
        return None if self._jobs is None else self._jobs - running

    def start(self, cells: Sequence[Cell]) -> list[Running]:
        where = os.getcwd()
        more = (self._order, self._launcher, self._cluster.threads)
        begun = [self._task.remote(where, cell, *more) for cell in cells]
        self._begun += begun
        return [_Task(self._cluster, reference) for reference in begun]

    def ended(self, running: Sequence[Running]) -> list[Running]:
        by_reference = {one.reference: one for one in running if isinstance(one, _Task)}
        done = self._cluster.wait([*by_reference], seconds=1.0)
        return [by_reference[reference] for reference in done]

    def close(self) -> None:
        """End what still runs, and leave the cluster."""
        for reference in self._begun:
            self._cluster.cancel(reference)
        self._cluster.close()
