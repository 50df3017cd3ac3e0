"""Reproduction of a results table: data, training, evaluation and report for tasks x algorithms x seeds, resumable."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from lmrl.errors import UserError
from lmrl.evaluation.records import write_records
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.report.report import write_report
from lmrl.reproduce.plan import Order, plan
from lmrl.reproduce.processes import LMRL, Processes
from lmrl.reproduce.progress import Progress, summary
from lmrl.reproduce.ray_cells import RayCells
from lmrl.reproduce.schedule import Threads, run_cells
from lmrl.reproduce.slurm import SlurmJobs
from lmrl.utils.files import check_may_replace

__all__ = ["OFFLINE", "ONLINE", "Order", "reproduce", "shortened"]

OFFLINE = ("bc", "filtered_bc", "mc", "ilql")
ONLINE = ("ppo", "online_filtered_bc", "ilql_to_ppo")

_NOTED = "reproduce.json"
_SMOKE_EPISODES = 5
_SMOKE_DATA = 120
"""Number of recorded episodes, enough that some are solved in every task."""


def shortened(order: Order) -> Order:
    """Return the same order with few steps, games and recorded episodes: enough to see every part work."""
    episodes = _SMOKE_EPISODES if order.episodes is None else order.episodes
    return replace(order, episodes=episodes, few_games=_SMOKE_EPISODES, data_size=_SMOKE_DATA)


def reproduce(
    order: Order,
    *,
    report: Path | str = "report",
    jobs: int | None = None,
    slurm: Mapping[str, Any] | None = None,
    ray: str | None = None,
    launcher: Sequence[str] | None = None,
    console: Console | None = None,
    command: str = "",
    records: Path | None = None,
) -> Path:
    """Record the datasets, train, evaluate, and write the report.

    Steps that were finished before with the same configuration, seed and number of episodes are not run again. A
    training that was killed resumes from its last checkpoint. Any other run in the folder of a cell is moved out of the
    way, as ``lmrl fit --overwrite`` does. A cell that fails is reported with its log and skipped, together with the
    cells that start from it; all other cells are run.

    Args:
        order: the specification of the table.
        report: folder for the report.
        jobs: number of cells that run in parallel, each with its share of the cores; None: 1, or with `slurm` or `ray`
            any number.
        slurm: run cells as SLURM jobs, with these options (`lmrl.reproduce.slurm.OPTIONS`). Cells that are ready
            together form one array. Jobs outlive this process; the next one waits for them.
        ray: run cells as tasks of a Ray cluster, ``local``, ``auto`` or ``HOST:PORT`` (`lmrl.utils.cluster.Cluster`).
            Tasks end with this process; the next one resumes from their checkpoints.
        launcher: the command in front of ``fit``, ``evaluate`` and ``data generate``; None: ``lmrl``.
        console: where progress is shown; None: standard output.
        command: the command that makes the table, for the report.
        records: folder of records to which finished cells are added (`lmrl.evaluation.records.write_records`). The
            report then shows all records of that folder.

    Returns:
        The path of ``report.html``.

    Raises:
        UserError: an unknown name, fewer than one job, episode or seed; no SLURM or Ray cluster where cells are for
            it, or both; at the end, if a cell failed.
    """
    _check(order, 1 if jobs is None else jobs)
    if slurm is not None and ray is not None:
        raise UserError("cells run as SLURM jobs or on a Ray cluster: give slurm or ray, not both")
    out = Console() if console is None else console
    cells = plan(order)
    # Without a number, SLURM and Ray run as many cells at once as they can.
    at_once = jobs if jobs is not None or slurm is not None or ray is not None else 1
    progress = Progress(out, order.runs / "reproduce.log", at_once)
    if not order.algorithms:  # all methods of the protocol
        trained = dict.fromkeys(cell.algorithm for cell in cells if cell.fit)
        order = replace(order, algorithms=tuple(trained))
    _note(order, command)
    if slurm is not None:
        failed = run_cells(cells, SlurmJobs(order, slurm, jobs, progress.say, launcher or LMRL), progress)
    elif ray is not None:
        failed = run_cells(cells, RayCells(order, ray, jobs, launcher), progress)
    else:
        with Processes(jobs or 1, launcher or LMRL) as processes:
            failed = run_cells(cells, Threads(order, processes, jobs or 1, progress.say), progress)
    failures = f"{len(failed)} of {len(cells)} cells failed: {', '.join(failed)} (their log.txt says why)"
    try:
        if records is None:
            page = write_report(order.runs, report, order.tasks, order.algorithms)
        else:
            write_records(order.runs, records)
            page = write_report(records, report)
    except UserError as error:
        if failed:  # which may be why there is nothing to report
            raise UserError(failures) from error
        raise
    # The table on the terminal shows this folder of runs, even if the report shows more records.
    out.print(summary(order.runs, order.tasks))
    out.print(f"report: {page}", highlight=False)
    if failed:
        raise UserError(failures)
    return page


def _check(order: Order, jobs: int) -> None:
    episodes = 1 if order.episodes is None else order.episodes
    for argument, value in (("jobs", jobs), ("episodes", episodes), ("seeds", len(order.seeds))):
        if value < 1:
            raise UserError(f"{argument} must be at least 1, got {value}")


def _note(order: Order, command: str) -> None:
    """Write the command and its algorithms into ``reproduce.json``, from where reports take them."""
    path = order.runs / _NOTED
    is_own = "commands" in read_json(path)
    check_may_replace(order.runs, (_NOTED,) if is_own else (), "reproduction", written=(_NOTED,))
    # A command that is run again moves to the end.
    commands = [line for line in read_json(path).get("commands", []) if line != command]
    write_json({"commands": [*commands, command], "algorithms": list(order.algorithms)}, path)
