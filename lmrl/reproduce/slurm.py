"""Cells as SLURM jobs, by submitit: arrays of those that are ready, picked up again by the command that goes on."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lmrl.errors import UserError, in_one_line, unknown
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.reproduce.plan import Cell, Order
from lmrl.reproduce.processes import LMRL, CommandFailed, Processes
from lmrl.reproduce.schedule import Running, run_cell

__all__ = ["OPTIONS", "SlurmJobs", "slurm_parameters"]

OPTIONS = {
    "time": "timeout_min",
    "cpus": "cpus_per_task",
    "mem": "mem_gb",
    "gpus": "gpus_per_node",
    "partition": "slurm_partition",
    "account": "slurm_account",
    "qos": "slurm_qos",
    "constraint": "slurm_constraint",
}
"""What can be asked for, and submitit's names: minutes, cores, GB and GPUs of a cell in whole numbers, then texts."""
_WHOLE = ("time", "cpus", "mem", "gpus")
_REQUEUED = 100
"""A cell may reach the end of its time so often; each time it goes on from its last checkpoint."""
_JOBS = "jobs.json"
_POLL = 1.0


def slurm_parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of ``--slurm`` as submitit takes them.

    Raises:
        UserError: an unknown one, ``time`` is missing, or a value of another kind.
    """
    for name, value in options.items():
        if name not in OPTIONS:
            raise unknown("option of slurm", name, OPTIONS)
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if name in _WHOLE and not whole:
            unit = " of minutes" if name == "time" else " of GB" if name == "mem" else ""
            raise UserError(f"slurm: {name} must be a whole number{unit} from 1, got {value!r}")
        if name not in _WHOLE and (isinstance(value, bool) or not isinstance(value, str | int) or not str(value)):
            raise UserError(f"slurm: {name} must be a text, got {value!r}")
    if "time" not in options:
        raise UserError("slurm needs the minutes that a cell may take at a time: --slurm time=240")
    return {OPTIONS[name]: value if name in _WHOLE else str(value) for name, value in options.items()}


class _CellJob:
    """The job of a cell. A job that reaches its time limit is queued again and resumes like a new command."""

    def __call__(self, cell: Cell, order: Order, launcher: Sequence[str]) -> dict[str, Any] | str:
        with Processes(1, launcher) as processes:
            try:
                return run_cell(cell, order, processes)
            except (CommandFailed, OSError, UserError) as error:
                return str(error)

    def checkpoint(self, *given: Any) -> Any:
        return import_module("submitit").helpers.DelayedSubmission(self, *given)


@dataclass(frozen=True, slots=True)
class _Job:
    """A job of submitit as `lmrl.reproduce.schedule.run_cells` looks at it."""

    job: Any

    def exception(self) -> BaseException | None:
        error: BaseException | None = self.job.exception()
        if error is not None:  # the job itself did not get to its end: killed, out of memory, out of time
            return CommandFailed(f"job {self.job.job_id} ended without a result: {str(error).strip()}")
        told = self.job.result()
        return CommandFailed(told) if isinstance(told, str) else None

    def result(self) -> dict[str, Any]:
        record: dict[str, Any] = self.job.result()
        return record


class SlurmJobs:
    """Runs cells as jobs: what is ready at a time becomes one array.

    The numbers of jobs are kept in ``slurm/jobs.json`` of the folder of runs, next to submitit's files. A resumed
    command waits for the jobs that are still queued or running instead of starting their cells again.

    Args:
        order: what the cells were planned from.
        options: as of `slurm_parameters`.
        jobs: how many cells of an array run at once; None: as many as SLURM lets.
        say: receives the numbers of jobs.
        launcher: the command in front of the words of a step.
        cluster: of submitit: ``slurm``, or ``local`` and ``debug`` for tests.

    Raises:
        UserError: as `slurm_parameters`; there is no SLURM here.
    """

    def __init__(
        self,
        order: Order,
        options: Mapping[str, Any],
        jobs: int | None,
        say: Callable[[str], None],
        launcher: Sequence[str] = LMRL,
        cluster: str = "slurm",
    ) -> None:
        given = slurm_parameters(options)
        submitit = import_module("submitit")
        logging.getLogger("submitit").setLevel(logging.ERROR)
        missing = [name for name in ("sbatch", "srun", "sacct") if shutil.which(name) is None]
        if cluster == "slurm" and missing:
            raise UserError(f"--slurm needs SLURM's commands, and {', '.join(missing)} cannot be found on this machine")
        self._folder = order.runs.absolute() / "slurm"
        self._executor = submitit.AutoExecutor(self._folder, cluster, slurm_max_num_timeout=_REQUEUED)
        if jobs is not None:
            given["slurm_array_parallelism"] = jobs
        self._executor.update_parameters(name="lmrl", **given)
        self._order = order
        self._launcher = tuple(launcher)
        self._say = say
        self._submitit = submitit
        self._cluster = cluster

    def free(self, running: int) -> int | None:
        """No limit: SLURM queues what is too much."""
        return None

    def start(self, cells: Sequence[Cell]) -> list[Running]:
        """Submit cells, but for those whose jobs were submitted before and have not ended.

        Raises:
            UserError: SLURM refuses, or a job works on a cell by another recipe.
        """
        found = {}
        for cell in cells:
            job = self._submitted(cell)
            if job is not None:
                found[cell.name] = job
        fresh = [cell for cell in cells if cell.name not in found]
        if fresh:
            found |= dict(zip((cell.name for cell in fresh), self._submit(fresh), strict=True))
        return [_Job(found[cell.name]) for cell in cells]

    def ended(self, running: Sequence[Running]) -> list[Running]:
        """Those that have ended, after about a second."""
        done = [job for job in running if isinstance(job, _Job) and job.job.done()]
        if not done:
            time.sleep(_POLL)
        return [*done]

    def close(self) -> None:
        """Jobs go on by themselves."""

    def _submit(self, cells: Sequence[Cell]) -> list[Any]:
        same = len(cells)
        try:
            jobs: list[Any] = self._executor.map_array(_CellJob(), cells, [self._order] * same, [self._launcher] * same)
        except Exception as error:  # submitit hands on what sbatch said as several kinds
            raise UserError(f"SLURM does not take the job: {in_one_line(error)}") from error
        path = self._folder / _JOBS
        noted = {cell.name: {"job": job.job_id, "recipe": cell.recipe} for cell, job in zip(cells, jobs, strict=True)}
        write_json({**read_json(path), **noted}, path)
        told = [f"{name} is job {note['job']}" for name, note in noted.items()]
        self._say(f"submitted: {', '.join(told)}")
        return jobs

    def _submitted(self, cell: Cell) -> Any:
        """The job of an earlier command that is queued or runs; None if there is none."""
        note = read_json(self._folder / _JOBS).get(cell.name)
        if self._cluster != "slurm" or not isinstance(note, dict) or not str(note.get("job", "")).strip():
            return None
        job = self._submitit.SlurmJob(self._folder, str(note["job"]))
        if job.done(force_check=True):
            return None
        if note.get("recipe") != cell.recipe:
            raise UserError(
                f"job {job.job_id} works on {cell.name} with other settings: wait until it ends, or "
                f"scancel {job.job_id}"
            )
        self._say(f"{cell.name} is job {job.job_id}, submitted before")
        return job
