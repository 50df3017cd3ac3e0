"""How far a table is, in plain lines, and the table that a reproduction ends with on the terminal."""

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
from lmrl.evaluation.records import DATA, read_records
from lmrl.evaluation.result_json import read_json
from lmrl.report.wording import UNKNOWN, duration, label, number, ordered, with_interval
from lmrl.reproduce.plan import Cell, Standing, is_done

__all__ = ["Progress", "summary"]

_EVERY = 60.0
"""Seconds between two lines on a training."""


class Progress:
    """Tells what happens, on a console and, with the time of day, in a log.

    Args:
        console: where lines are shown.
        log: file to which they are appended.
        jobs: how many cells run at once.
    """

    def __init__(self, console: Console, log: Path, jobs: int = 1) -> None:
        self._console = console
        self._log = log
        self._jobs = jobs
        self._labels: dict[str, str] = {}
        self._left: list[Cell] = []
        self._seconds: dict[tuple[str, ...], list[float]] = defaultdict(list)
        self._told: dict[str, tuple[float, int]] = {}

    def begin(self, cells: Sequence[Cell], waiting: Sequence[Cell]) -> None:
        """All cells, and those that are still to be run."""
        self._labels = {cell.name: f"[{place} of {len(cells)}] {cell.name}" for place, cell in enumerate(cells, 1)}
        self._left = list(waiting)
        for cell in cells:
            if cell not in waiting:
                self._learn(cell, read_json(cell.folder / "cell.json"))
        self.say(f"{len(cells)} cells, {len(cells) - len(waiting)} of them finished before{self._rest()}")

    def start(self, cell: Cell, found: Standing | None) -> None:
        """A cell begins."""
        expected = self._expected(cell)
        about = "" if expected is None else f", about {duration(expected)}"
        self._told[cell.name] = (monotonic(), _last_step(cell.folder) or 0)
        self.say(f"{self._labels[cell.name]}: {_what(cell, found)}{about}")

    def tick(self, running: Iterable[Cell]) -> None:
        """Time goes by: say how far trainings are, once a minute."""
        for cell in running:
            since, before = self._told[cell.name]
            if monotonic() - since < _EVERY:
                continue
            step = None if cell.fit is None or is_done(cell, cell.fit) else _last_step(cell.folder)
            self._told[cell.name] = (monotonic(), step or before)
            if step is None or cell.max_steps is None:
                self.say(f"{self._labels[cell.name]}: working")
            else:
                left = (cell.max_steps - step) * (monotonic() - since) / max(1, step - before)
                about = f", about {duration(left)} left" if step > before else ""
                self.say(f"{self._labels[cell.name]}: step {step} of {cell.max_steps}{about}")

    def end(self, cell: Cell, record: dict[str, Any]) -> None:
        """A cell is finished, with this record."""
        self._left.remove(cell)
        self._learn(cell, record)
        scores = record["scores"]
        took = duration(record["seconds"]["total"])
        shown = with_interval(scores["normalized"], scores["normalized_ci"])
        self.say(f"{self._labels[cell.name]}: done in {took}, normalised {shown}{self._rest()}")

    def fail(self, cell: Cell, why: str) -> None:
        """A cell is given up."""
        self._left.remove(cell)
        self.say(f"{self._labels[cell.name]}: FAILED (log: {(cell.folder / 'log.txt').as_posix()}){self._rest()}")
        self.say(why)

    def say(self, line: str) -> None:
        """One line."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now():%Y-%m-%d %H:%M:%S} {line}\n")

    def _learn(self, cell: Cell, record: dict[str, Any]) -> None:
        seconds = record.get("seconds", {}).get("total")
        for key in _kinds(cell) if seconds is not None else ():
            self._seconds[key].append(float(seconds))

    def _expected(self, cell: Cell) -> float | None:
        """Mean of what the nearest kin took: another seed, the same algorithm elsewhere, any training."""
        return next((mean(self._seconds[key]) for key in _kinds(cell) if self._seconds[key]), None)

    def _rest(self) -> str:
        known = [seconds for seconds in map(self._expected, self._left) if seconds is not None]
        if not self._left:
            return ""
        unknown = len(self._left) - len(known)
        about = f", about {duration(sum(known) / self._jobs)}" if known else ""
        return f"; {len(self._left)} to go{about}" + (f" and {unknown} of unknown length" if unknown and known else "")


def _kinds(cell: Cell) -> list[tuple[str, ...]]:
    kind = "data" if cell.algorithm == DATA else "player" if cell.fit is None else "training"
    return [(cell.task, cell.algorithm), (cell.algorithm,), (kind, "any")]


def _what(cell: Cell, found: Standing | None) -> str:
    if cell.algorithm == DATA:
        return "recording the dataset, unless it is there"
    if found is None:
        return "playing"
    steps = "" if cell.max_steps is None else f" {cell.max_steps} steps"
    return {
        Standing.DONE: "playing (trained before)",
        Standing.RESUME: f"training goes on from last.ckpt,{steps} in all",
        Standing.FRESH: f"training{steps}",
    }[found]


def _last_step(folder: Path) -> int | None:
    """The step of the last line of a ``metrics.csv`` that is being written; None if it cannot be read just now."""
    path = find_metrics(folder) if folder.is_dir() else None
    try:
        with path.open(newline="") as lines:  # type: ignore[union-attr]
            steps = [row["step"] for row in csv.DictReader(lines)]
        return int(steps[-1])
    except (AttributeError, OSError, csv.Error, KeyError, IndexError, ValueError, TypeError):
        return None


def summary(runs: Path, tasks: Sequence[str]) -> Table:
    """Scores of everything evaluated under ``runs``, next to the published ones; a line per training seed.

    It fits into 80 columns: the task stands above its players; success is that as trained, and
    returns are in the report.
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
                both = [None if one is None else one.scores for one in (result, result.tuned)]
                table.add_row(
                    escape(label(name)),
                    str(seed),
                    *(
                        escape(with_interval(one["normalized"], one["normalized_ci"])) if one else UNKNOWN
                        for one in both
                    ),
                    number(published.normalized.get(name)),
                    f"{100 * result.scores['success_rate']:.1f} %",
                )
    return table
