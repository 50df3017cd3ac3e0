"""Cells as SLURM jobs, by submitit: an array of all that are ready. A later command waits for the same jobs."""

import logging
import shutil
import subprocess
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
"""Our options and submitit's names: minutes, cores, GB and GPUs of a cell as whole numbers, the others as texts."""
_WHOLE = ("time", "cpus", "mem", "gpus")
_REQUEUED = 100
"""How often a cell may reach the end of its time; each time it resumes from its last checkpoint."""
_JOBS = "jobs.json"
_POLL = 1.0
_UNLISTED = 600.0
"""Seconds in which a job may be missing in SLURM's accounting because it is new."""


def slurm_parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of ``--slurm`` with submitit's names.

    Raises:
        UserError: an option is unknown or has a value of another kind, or ``time`` is missing.
    """
    parameters: dict[str, Any] = {}
    for name, value in options.items():
        if name not in OPTIONS:
            raise unknown("option of slurm", name, OPTIONS)
        is_integer = isinstance(value, int) and not isinstance(value, bool)  # in Python, True is an int
        if name in _WHOLE:
            if not is_integer or value < 1:
                unit = " of minutes" if name == "time" else " of GB" if name == "mem" else ""
                raise UserError(f"slurm: {name} must be a whole number{unit} from 1, got {value!r}")
            parameters[OPTIONS[name]] = value
        else:
            # YAML reads the name of a partition or account as a number if it consists of digits.
            if not is_integer and not (isinstance(value, str) and value):
                raise UserError(f"slurm: {name} must be a text, got {value!r}")
            parameters[OPTIONS[name]] = str(value)
    if "time" not in options:
        raise UserError("slurm needs the minutes that a cell may take at a time: --slurm time=240")
    return parameters


class _CellJob:
    """The job of a cell, which submitit pickles. At its time limit it is queued again and resumes."""

    def __call__(self, cell: Cell, order: Order, launcher: Sequence[str]) -> dict[str, Any] | str:
        with Processes(1, launcher) as processes:
            try:
                return run_cell(cell, order, processes)
            except (CommandFailed, OSError, UserError) as error:
                return str(error)

    def checkpoint(self, *given: Any) -> Any:
        # Called by submitit shortly before the time limit.
        return import_module("submitit").helpers.DelayedSubmission(self, *given)


@dataclass(frozen=True, slots=True)
class _Job:
    """A job of submitit, with the interface of `lmrl.reproduce.schedule.Running`."""

    job: Any

    def exception(self) -> BaseException | None:
        error: BaseException | None = self.job.exception()
        if error is not None:  # the job was killed, or ran out of memory or time
            return CommandFailed(f"job {self.job.job_id} ended without a result: {str(error).strip()}")
        result = self.job.result()
        return CommandFailed(result) if isinstance(result, str) else None  # see `_CellJob`

    def result(self) -> dict[str, Any]:
        record: dict[str, Any] = self.job.result()
        return record


class SlurmJobs:
    """Runs cells as jobs; cells that are ready at the same time form one array.

    The numbers of jobs are kept in ``slurm/jobs.json`` of the folder of runs, next to submitit's files. A later
    command waits for the jobs that are still queued or running instead of starting their cells again.

    Args:
        order: the order that the cells were planned from.
        options: see `slurm_parameters`.
        jobs: number of cells of an array that run at once; None: as many as SLURM allows.
        say: receives the numbers of jobs.
        launcher: the command in front of the arguments of a step.
        cluster: submitit's kind of cluster: ``slurm``, or ``local`` and ``debug`` for tests.

    Raises:
        UserError: as `slurm_parameters`; this machine has no SLURM.
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
        parameters = slurm_parameters(options)
        if order.preset.on_gpu:
            parameters.setdefault("gpus_per_node", 1)
        submitit = import_module("submitit")
        logging.getLogger("submitit").setLevel(logging.ERROR)
        missing = [name for name in ("sbatch", "srun", "sacct") if shutil.which(name) is None]
        if cluster == "slurm" and missing:
            raise UserError(f"--slurm needs SLURM's commands, and {', '.join(missing)} cannot be found on this machine")
        self._folder = order.runs.absolute() / "slurm"
        self._executor = submitit.AutoExecutor(self._folder, cluster, slurm_max_num_timeout=_REQUEUED)
        if jobs is not None:
            parameters["slurm_array_parallelism"] = jobs
        self._executor.update_parameters(name="lmrl", **parameters)
        self._order = order
        self._launcher = tuple(launcher)
        self._say = say
        self._submitit = submitit
        self._cluster = cluster

    def free(self, running: int) -> int | None:
        """Return no limit: SLURM queues what it cannot run yet."""
        return None

    def start(self, cells: Sequence[Cell]) -> list[Running]:
        """Submit cells, except those whose jobs were submitted before and have not ended.

        Raises:
            UserError: SLURM refuses, or a job works on a cell with another recipe.
        """
        jobs = {}
        new_cells = []
        for cell in cells:
            job = self._submitted(cell)
            if job is None:
                new_cells.append(cell)
            else:
                jobs[cell.name] = job
        if new_cells:
            for cell, job in zip(new_cells, self._submit(new_cells), strict=True):
                jobs[cell.name] = job
        return [_Job(jobs[cell.name]) for cell in cells]

    def ended(self, running: Sequence[Running]) -> list[Running]:
        """Return the cells that have ended, after about a second if none has."""
        done = [job for job in running if isinstance(job, _Job) and job.job.done()]
        if not done:
            time.sleep(_POLL)
        return list(done)

    def close(self) -> None:
        """Do nothing: jobs outlive this process."""

    def _submit(self, cells: Sequence[Cell]) -> list[Any]:
        """Submit an array of jobs, and note their numbers for later commands."""
        orders = [self._order] * len(cells)
        launchers = [self._launcher] * len(cells)
        try:
            jobs: list[Any] = self._executor.map_array(_CellJob(), cells, orders, launchers)
        except Exception as error:  # submitit raises errors of sbatch as exceptions of several kinds
            raise UserError(f"SLURM does not take the job: {in_one_line(error)}") from error
        path = self._folder / _JOBS
        notes = read_json(path)
        lines = []
        for cell, job in zip(cells, jobs, strict=True):
            notes[cell.name] = {"job": job.job_id, "recipe": cell.recipe, "at": time.time()}
            lines.append(f"{cell.name} is job {job.job_id}")
        write_json(notes, path)
        self._say(f"submitted: {', '.join(lines)}")
        return jobs

    def _check_accounting(self, job: str, cell: Cell) -> None:
        """Make sure that SLURM knows about jobs: without its accounting they all seem to be over.

        Raises:
            UserError: sacct does not answer.
        """
        if subprocess.run(["sacct", "-n", "-j", job], capture_output=True).returncode != 0:
            raise UserError(
                f"sacct does not answer, so job {job} of {cell.name} may still run: try again later, or remove the "
                f"cell from {self._folder / _JOBS} if squeue does not list that job"
            )

    def _submitted(self, cell: Cell) -> Any:
        """Return the job of an earlier command that is still queued or running; None if there is none."""
        note = read_json(self._folder / _JOBS).get(cell.name)
        if self._cluster != "slurm" or not isinstance(note, dict) or not str(note.get("job", "")).strip():
            return None
        job = self._submitit.SlurmJob(self._folder, str(note["job"]))
        if job.done(force_check=True):
            return None
        at = note.get("at")
        is_new = isinstance(at, float) and time.time() - at < _UNLISTED
        if job.state == "UNKNOWN" and not is_new:
            self._check_accounting(job.job_id, cell)
            return None  # SLURM has forgotten it, so it is over
        if note.get("recipe") != cell.recipe:
            raise UserError(
                f"job {job.job_id} works on {cell.name} with other settings: wait until it ends, or "
                f"scancel {job.job_id}"
            )
        self._say(f"{cell.name} is job {job.job_id}, submitted before")
        return job
