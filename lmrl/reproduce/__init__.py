"""The whole table: data, training, evaluation and report for tasks x algorithms x seeds, resumable."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lmrl.errors import UserError
from lmrl.evaluation.result_files import read_json, write_json
from lmrl.report.report import write_report
from lmrl.reproduce.plan import Order, plan
from lmrl.reproduce.progress import Progress, summary
from lmrl.reproduce.records import keep
from lmrl.reproduce.schedule import LMRL, Processes, run_cells

__all__ = ["OFFLINE", "ONLINE", "Order", "reproduce", "shortened"]

OFFLINE = ("bc", "filtered_bc", "mc", "ilql")
ONLINE = ("ppo", "online_filtered_bc", "ilql_to_ppo")

_SMOKE_EPISODES = 5
_SMOKE_DATA = 120
"""Recorded episodes, of which some are solved in every task."""


def shortened(order: Order) -> Order:
    """The same with a few steps, games and recorded episodes of everything: enough to see every part work."""
    episodes = _SMOKE_EPISODES if order.episodes is None else order.episodes
    return replace(order, episodes=episodes, few_games=_SMOKE_EPISODES, data_size=_SMOKE_DATA)


def reproduce(
    order: Order,
    *,
    report: Path | str = "report",
    jobs: int = 1,
    launcher: Sequence[str] = LMRL,
    console: Console | None = None,
    command: str = "",
    records: Path | None = None,
) -> Path:
    """Make the datasets, train, let everyone play, and write the report.

    What was finished before from the same configuration, seed and number of episodes is not run again, and a training
    that was killed goes on from its last checkpoint. Any other run in the folder of a cell is moved out of the
    way, as ``lmrl fit --overwrite`` does. A cell that fails is told with its log and skipped, with those that start
    from it; the rest goes on.

    Args:
        order: what the table is to hold.
        report: folder for the report.
        jobs: how many cells run side by side, each with its share of the cores.
        launcher: the command in front of ``fit``, ``evaluate`` and ``data generate``.
        console: where progress is shown; standard output if left out.
        command: what made the table, for the report.
        records: folder in which small records of finished cells are kept (`lmrl.reproduce.records.keep`); the report is
            then of all that are there.

    Returns:
        The path of ``report.html``.

    Raises:
        UserError: an unknown name, fewer than one job, episode or seed; at the end, if a cell failed.
    """
    _check(order, jobs)
    out = Console() if console is None else console
    cells = plan(order)
    progress = Progress(out, order.runs / "reproduce.log", jobs)
    _note(order, command)
    with Processes(jobs, launcher) as processes:
        failed = run_cells(cells, order, processes, jobs, progress)
    if records is None:
        page = write_report(order.runs, report, order.tasks, order.algorithms)
    else:
        keep(order.runs, records)
        page = write_report(records, report)
    out.print(summary(order.runs, order.tasks))
    out.print(f"report: {page}", highlight=False)
    if failed:
        raise UserError(f"{len(failed)} of {len(cells)} cells failed: {', '.join(failed)} (their log.txt says why)")
    return page


def _check(order: Order, jobs: int) -> None:
    episodes = 1 if order.episodes is None else order.episodes
    for argument, value in (("jobs", jobs), ("episodes", episodes), ("seeds", len(order.seeds))):
        if value < 1:
            raise UserError(f"{argument} must be at least 1, got {value}")


def _note(order: Order, command: str) -> None:
    """Leave what a report of these runs has to know, in ``reproduce.json``."""
    path = order.runs / "reproduce.json"
    before = [line for line in read_json(path).get("commands", []) if line != command]
    write_json({"commands": [*before, command], "algorithms": [*order.algorithms]}, path)
