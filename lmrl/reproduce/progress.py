"""Progress of a reproduction in plain lines, and the table of scores that it ends with on the terminal."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from statistics import mean
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lmrl.envs import registry
from lmrl.evaluation.curves import find_metrics
from lmrl.evaluation.records import DATA, Record, read_records
from lmrl.evaluation.result_json import read_json
from lmrl.report.wording import UNKNOWN, duration, label, number, ordered, with_interval
from lmrl.reproduce.plan import Cell, Standing, is_done

__all__ = ["Progress", "summary"]

_EVERY = 60.0
"""Seconds between two lines about a training."""


class Progress:
    """Reports events on a console and, with date and time, in a log.

    Args:
        console: where lines are shown.
        log: file to which they are appended.
        jobs: number of cells that run at once; None: it is not known, and the time of all together is not estimated.
    """

    def __init__(self, console: Console, log: Path, jobs: int | None = 1) -> None:
        self._console = console
        self._log = log
        self._jobs = jobs
        self._labels: dict[str, str] = {}
        self._left: list[Cell] = []
        # Kind of cell (see `_kinds`) to the seconds that cells of this kind took.
        self._seconds: dict[tuple[str, ...], list[float]] = defaultdict(list)
        # Cell to the time of the last line about it, and the step that its training had reached.
        self._reported: dict[str, tuple[float, int]] = {}

    def begin(self, cells: Sequence[Cell], waiting: Sequence[Cell]) -> None:
        """Report all cells, and those that are still to be run."""
        self._left = list(waiting)
        for position, cell in enumerate(cells, start=1):
            self._labels[cell.name] = f"[{position} of {len(cells)}] {cell.name}"
            if cell not in waiting:
                self._learn(cell, read_json(cell.folder / "cell.json"))
        self.say(f"{len(cells)} cells, {len(cells) - len(waiting)} of them finished before{self._rest()}")

    def start(self, cell: Cell, standing: Standing | None) -> None:
        """Report that a cell begins."""
        expected = self._expected(cell)
        about = "" if expected is None else f", about {duration(expected)}"
        self._reported[cell.name] = (monotonic(), _last_step(cell.folder) or 0)
        self.say(f"{self._labels[cell.name]}: {_what(cell, standing)}{about}")

    def tick(self, running: Iterable[Cell]) -> None:
        """Report how far trainings are, each once a minute."""
        for cell in running:
            since, before = self._reported[cell.name]
            if monotonic() - since < _EVERY:
                continue
            step = None if cell.fit is None or is_done(cell, cell.fit) else _last_step(cell.folder)
            self._reported[cell.name] = (monotonic(), step or before)
            if step is None or cell.max_steps is None:
                self.say(f"{self._labels[cell.name]}: working")
            else:
                # At the pace since the last line.
                left = (cell.max_steps - step) * (monotonic() - since) / max(1, step - before)
                about = f", about {duration(left)} left" if step > before else ""
                self.say(f"{self._labels[cell.name]}: step {step} of {cell.max_steps}{about}")

    def end(self, cell: Cell, record: dict[str, Any]) -> None:
        """Report that a cell is finished, with this record."""
        self._left.remove(cell)
        self._learn(cell, record)
        scores = record["scores"]
        took = duration(record["seconds"]["total"])
        shown = with_interval(scores["normalized"], scores["normalized_ci"])
        self.say(f"{self._labels[cell.name]}: done in {took}, normalised {shown}{self._rest()}")

    def fail(self, cell: Cell, why: str) -> None:
        """Report that a cell has failed."""
        self._left.remove(cell)
        self.say(f"{self._labels[cell.name]}: FAILED (log: {(cell.folder / 'log.txt').as_posix()}){self._rest()}")
        self.say(why)

    def say(self, line: str) -> None:
        """Write a line."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n")

    def _learn(self, cell: Cell, record: dict[str, Any]) -> None:
        """Remember how long a cell took, for estimates."""
        seconds = record.get("seconds", {}).get("total")
        if seconds is not None:
            for kind in _kinds(cell):
                self._seconds[kind].append(float(seconds))

    def _expected(self, cell: Cell) -> float | None:
        """Return the mean time of the most similar cells: other seeds, else the algorithm elsewhere, else any."""
        for kind in _kinds(cell):
            if self._seconds[kind]:
                return mean(self._seconds[kind])
        return None

    def _rest(self) -> str:
        """Describe the cells that are left, with an estimate of their time."""
        if not self._left:
            return ""
        if self._jobs is None:
            return f"; {len(self._left)} to go"
        known = [seconds for seconds in map(self._expected, self._left) if seconds is not None]
        unknown = len(self._left) - len(known)
        about = f", about {duration(sum(known) / self._jobs)}" if known else ""
        return f"; {len(self._left)} to go{about}" + (f" and {unknown} of unknown length" if unknown and known else "")


def _kinds(cell: Cell) -> list[tuple[str, ...]]:
    """Return the kinds of a cell, from the narrowest to the widest."""
    kind = "training"
    if cell.algorithm == DATA:
        kind = "data"
    elif cell.fit is None:
        kind = "player"
    return [(cell.task, cell.algorithm), (cell.algorithm,), (kind, "any")]


def _what(cell: Cell, standing: Standing | None) -> str:
    if cell.algorithm == DATA:
        return "recording the dataset, unless it is there"
    if standing is None:
        return "playing"
    steps = "" if cell.max_steps is None else f" {cell.max_steps} steps"
    return {
        Standing.DONE: "playing (trained before)",
        Standing.RESUME: f"training resumes from last.ckpt,{steps} in all",
        Standing.FRESH: f"training{steps}",
    }[standing]


def _last_step(folder: Path) -> int | None:
    """Return the step of the last line of a ``metrics.csv`` that is being written; None if it cannot be read now."""
    path = find_metrics(folder) if folder.is_dir() else None
    # The file is being written: any part of it may be missing or cut off.
    try:
        with path.open(newline="") as lines:  # type: ignore[union-attr]
            steps = [row["step"] for row in csv.DictReader(lines)]
        return int(steps[-1])
    except (AttributeError, OSError, csv.Error, KeyError, IndexError, ValueError, TypeError):
        return None


def summary(runs: Path, tasks: Sequence[str]) -> Table:
    """Return the scores of all evaluations under ``runs`` next to the published ones; a row per training seed.

    The table fits into 80 columns: tasks have rows of their own, success is shown as trained, and returns are left to
    the report.
    """
    table = Table(
        title="normalised scores: 0, 50, 100: published minimum, average, maximum",
        title_justify="left",
        box=None,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("player", overflow="fold")
    for head in ("seed", "as trained [95 %]", "tuned [95 %]", "paper", "success"):
        table.add_column(escape(head), justify="right", no_wrap=True)
    for task in tasks:
        published = registry.task(task).scores
        results = read_records(runs, task)
        if results:
            table.add_row(f"[bold]{task}[/bold]")
        for name in ordered(results):
            for seed, result in results[name].items():
                table.add_row(
                    escape(label(name)),
                    str(seed),
                    _score(result),
                    UNKNOWN if result.tuned is None else _score(result.tuned),
                    number(published.normalized.get(name)),
                    f"{100 * result.scores['success_rate']:.1f} %",
                )
    return table


def _score(result: Record) -> str:
    # Rich would read the brackets of the interval as markup.
    return escape(with_interval(result.scores["normalized"], result.scores["normalized_ci"]))
