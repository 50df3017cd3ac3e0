"""Running the cells of a plan: several side by side, each after the one it starts from, with progress."""

import csv
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from lmrl.evaluation.curves import find_metrics
from lmrl.evaluation.results import read_json
from lmrl.evaluation.wording import duration, with_interval
from lmrl.reproduce.plan import Cell, is_done
from lmrl.reproduce.processes import CommandFailed, Processes

__all__ = ["run_cells"]


def run_cells(cells: Sequence[Cell], processes: Processes, jobs: int, console: Console) -> dict[str, str]:
    """Run every cell that is not finished; a failed one stops nothing but those that start from it.

    Args:
        cells: in an order in which each comes after the one it starts from.
        processes: runs the commands; its ``with`` block must be open.
        jobs: how many cells at once.
        console: where progress and outcomes are shown.

    Returns:
        Why cells failed, by their name; empty if none did.
    """
    failed: dict[str, str] = {}
    waiting, running = list(cells), dict[Future[None], Cell]()
    # The executor is left inside `processes`, so its threads end as soon as their processes are ended.
    executor = ThreadPoolExecutor(max_workers=jobs)
    with _progress(console) as progress:
        lines: dict[str, TaskID] = {}
        try:
            while waiting or running:
                for cell in _ready(waiting, [*running.values()], failed, jobs - len(running), console):
                    waiting.remove(cell)
                    if cell.name not in failed:
                        lines[cell.name] = progress.add_task(cell.name, total=cell.max_steps, state="starting")
                        running[executor.submit(_run, cell, processes)] = cell
                for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done if running else ():
                    cell = running.pop(future)
                    progress.remove_task(lines.pop(cell.name))
                    _tell(cell, future, failed, console)
                for cell in running.values():
                    _show(progress, lines[cell.name], cell)
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
    return failed


def _ready(
    waiting: Sequence[Cell], running: Sequence[Cell], failed: dict[str, str], free: int, console: Console
) -> list[Cell]:
    """Cells to start now, and, noted in `failed`, those that never can."""
    unfinished = {cell.name for cell in (*waiting, *running)}
    found: list[Cell] = []
    for cell in waiting:
        base = f"{cell.task}/{cell.after}"
        if cell.after is not None and base in failed:
            failed[cell.name] = f"not started, because it starts from {base}"
            console.print(f"[red]skipped[/] {cell.name}: {failed[cell.name]}", highlight=False)
            found.append(cell)
        elif (cell.after is None or base not in unfinished) and free > 0:
            found.append(cell)
            free -= 1
    return found


def _run(cell: Cell, processes: Processes) -> None:
    if not is_done(cell, cell.fit):
        _set_aside(cell.folder)
        processes.run(cell.fit, cell.folder)
    if not is_done(cell, cell.evaluate):
        processes.run(cell.evaluate, cell.folder)


def _set_aside(folder: Path) -> None:
    """Move what an earlier run left (it may have taken hours) to ``runs/<task>/.earlier``: two must not mix."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    kept = folder.parent / ".earlier"
    kept.mkdir(exist_ok=True)
    free = next(name for number in count(1) if not (name := kept / f"{folder.name}-{number}").exists())
    folder.rename(free)


def _tell(cell: Cell, future: Future[None], failed: dict[str, str], console: Console) -> None:
    error = future.exception()
    if error is None:
        scores = read_json(cell.folder / "evaluation" / "scores.json")
        steps = read_json(cell.folder / "timing.json").values()
        console.print(
            f"[green]done[/] {cell.name}: normalised {with_interval(scores['normalized'], scores['normalized_ci'])}, "
            f"{duration(sum(step['seconds'] for step in steps))}",
            highlight=False,
        )
        return
    if not isinstance(error, (CommandFailed, OSError)):
        raise error
    failed[cell.name] = str(error)
    console.print(f"[red]failed[/] {cell.name} (log: {cell.folder / 'log.txt'})", highlight=False)
    console.print(str(error), markup=False, highlight=False)


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}", markup=False),
        TimeElapsedColumn(),
        console=console,
    )


def _show(progress: Progress, line: TaskID, cell: Cell) -> None:
    if is_done(cell, cell.fit):
        progress.update(line, total=None, state="playing")
    elif (step := _last_step(cell.folder)) is not None:
        total = "" if cell.max_steps is None else f" of {cell.max_steps}"
        progress.update(line, completed=step, state=f"training, step {step}{total}")
    else:
        progress.update(line, state="training")


def _last_step(folder: Path) -> int | None:
    """The step of the last line of a ``metrics.csv`` that is being written; None if it cannot be read just now."""
    path = find_metrics(folder) if folder.is_dir() else None
    try:
        with path.open(newline="") as lines:  # type: ignore[union-attr]
            steps = [row["step"] for row in csv.DictReader(lines)]
        return int(steps[-1])
    except (AttributeError, OSError, csv.Error, KeyError, IndexError, ValueError, TypeError):
        return None
