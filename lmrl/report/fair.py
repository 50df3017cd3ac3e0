"""The fair table (``docs/reference/protocol.md``): its cells, differences over training seeds, and two pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lmrl.envs import registry
from lmrl.envs.scores import normalize
from lmrl.evaluation.aggregates import ENOUGH_SEEDS
from lmrl.evaluation.intervals import Interval, student_mean
from lmrl.evaluation.records import Record, read_records
from lmrl.report.plots import STYLE, grid_of_panels
from lmrl.report.tables import Table
from lmrl.report.wording import NO_SPREAD, UNKNOWN, colour, label, number, ordered, with_interval

__all__ = ["FairCell", "Row", "Rows", "fair_row", "fair_rows", "paired", "plot_compute", "plot_heat_map", "table_of"]

START = "bc"
_SHARES = {"at_25": 0.25, "at_50": 0.5}
"""Share of the compute that an earlier policy of a run has used, by its name in the records."""
_ROUNDING = 1e-9
_DASHES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True)
class FairCell:
    """One method on one task with one training seed."""

    tflop: float
    """Compute of training and rollouts in 10^12 operations; 0 for BC, whose compute is not part of the budget."""
    by_share: Mapping[float, float]
    """Score on the task's own scale after a share of the compute, each with the decoding chosen at the end."""
    chosen: float = 1.0
    """Share of the compute after which the policy was best on selection games."""

    @property
    def score(self) -> float:
        """The one number of the cell: the score of the chosen policy."""
        return self.by_share[self.chosen]


Row: TypeAlias = Mapping[str, Mapping[int, FairCell]]
"""Method to training seed to cell, of one task."""
Rows: TypeAlias = Mapping[str, Row]
"""Task to row."""


def fair_rows(place: Path) -> Rows:
    """Return all rows of which a folder of records holds trained cells, in the order of the tasks."""
    rows = {}
    for task in registry.tasks():
        row = fair_row(read_records(place, task)) if (place / f"{task}.jsonl").is_file() else {}
        if row:
            rows[task] = row
    return rows


def fair_row(records: Mapping[str, Mapping[int, Record]]) -> Row:
    """Return the trained cells of a task, without runs whose decoding has not been chosen.

    Args:
        records: policy to training seed to record, of a task with an own scale.
    """
    row: dict[str, dict[int, FairCell]] = {}
    for name, seeds in records.items():
        for seed, record in seeds.items():
            if record.tuned is not None:
                row.setdefault(name, {})[seed] = _cell(record, record.tuned)
    return row


def _cell(record: Record, tuned: Record) -> FairCell:
    scale = registry.task(record.task).own_scale
    assert scale is not None
    by_share = {1.0: normalize(tuned.scores["return_mean"], scale)}
    for name, share in _SHARES.items():
        earlier = record.cell.get("earlier", {}).get(name)
        if earlier:
            by_share[share] = normalize(earlier["return_mean"], scale)
    chosen = _SHARES.get(record.cell.get("chosen", ""), 1.0)
    return FairCell(record.cell.get("tflop") or 0.0, by_share, chosen)


def paired(row: Row, method: str, base: str) -> tuple[list[float], Interval | None]:
    """Return by how many points each run scores above the run of `base` with the same seed, and Student's interval.

    The interval is None for fewer than two pairs, and for equal differences, whose spread is not known.
    """
    ours = row.get(method, {})
    bases = row.get(base, {})
    common = sorted(ours.keys() & bases.keys())
    differences = [ours[seed].score - bases[seed].score for seed in common]
    return differences, _student(differences)


def _student(values: Sequence[float]) -> Interval | None:
    if len(values) < 2 or max(values) - min(values) < _ROUNDING:
        return None
    return student_mean(values)


def table_of(rows: Rows, base: str | None = None) -> Table:
    """Return the mean score of each method on each task, with Student's interval over training seeds.

    Args:
        rows: the cells.
        base: return differences from this method instead, paired by training seed. A difference of three or more
            pairs whose interval does not contain 0 is bold.
    """
    methods = ordered({method for row in rows.values() for method in row})
    lines = []
    for method in methods:
        if method != base:
            lines.append((_named(method), *(_entry(row, method, base) for row in rows.values())))
    return Table(("method", *rows), lines)


def _entry(row: Row, method: str, base: str | None) -> str:
    if base is None:
        values = [cell.score for cell in row.get(method, {}).values()]
        interval = _student(values)
    else:
        values, interval = paired(row, method, base)
    if not values:
        return UNKNOWN
    mean = float(np.mean(values))
    if interval is None:
        return f"{number(mean)} [{NO_SPREAD}]" if len(values) > 1 else number(mean)
    shown = with_interval(mean, interval)
    excludes_zero = interval.low > 0 or interval.high < 0
    is_claim = base is not None and len(values) >= ENOUGH_SEEDS and excludes_zero
    return f"**{shown}**" if is_claim else shown


def _named(method: str) -> str:
    """Return the label of a method, which may start from another one: ``GRPO from filtered BC``."""
    name, _, start = method.partition("_from_")
    return f"{label(name)} from {label(start)}" if start else label(name)


def plot_heat_map(rows: Rows, path: Path) -> None:
    """Draw the mean score of each method (columns) on each task (rows) as colour and number."""
    methods = ordered({method for row in rows.values() for method in row})
    means = np.full((len(rows), len(methods)), np.nan)
    for place, row in enumerate(rows.values()):
        for column, method in enumerate(methods):
            if method in row:
                means[place, column] = np.mean([cell.score for cell in row[method].values()])
    with matplotlib.style.context(STYLE):
        figure, (axis,) = grid_of_panels(1, 1, 0.8 * len(methods) + 2.2, 0.42 * len(rows) + 0.9, 0.2)
        image = axis.imshow(means, cmap="viridis", vmin=0, vmax=100, aspect="auto")
        for place, column in np.argwhere(~np.isnan(means)):
            mean = means[place, column]
            axis.text(column, place, number(mean), ha="center", va="center", color="white" if mean < 60 else "black")
        axis.set_xticks(range(len(methods)), [_named(name) for name in methods], rotation=30, ha="right")
        axis.set_yticks(range(len(rows)), rows)
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0)
        figure.colorbar(image, label="own scale")
        figure.savefig(path)


def plot_compute(rows: Rows, path: Path) -> None:
    """Draw a panel per task: score over compute, the mean of the seeds and their range; BC is where all start."""
    with matplotlib.style.context(STYLE):
        figure, axes = grid_of_panels(len(rows), 3, 3.6, 2.7, 0.6)
        every_method = ordered({method for row in rows.values() for method in row})
        lines: dict[str, Line2D] = {}
        for axis, (task, row) in zip(axes, rows.items(), strict=True):
            for method in ordered(row):
                if method != START:
                    # Colours of related methods are similar, so their dashes differ.
                    dashes = _DASHES[every_method.index(method) % len(_DASHES)]
                    lines[method] = _curve(axis, method, row, dashes)
            axis.set_title(task, fontweight="bold")
            axis.grid(axis="y", color="#EEEEEE", linewidth=0.8)
        methods = ordered(lines)
        handles = [lines[method] for method in methods]
        figure.legend(handles, [_named(method) for method in methods], loc="outside upper center", ncols=5)
        figure.supxlabel("compute of training and rollouts, TFLOP", size=9.5)
        figure.supylabel("score, own scale", size=9.5)
        figure.savefig(path)


def _curve(axis: Axes, method: str, row: Row, dashes: str) -> Line2D:
    """Draw the curve of a method and return its line."""
    cells = row[method]
    shares = sorted(set.intersection(*(set(cell.by_share) for cell in cells.values())))
    scores = np.array([[cell.by_share[share] for share in shares] for cell in cells.values()])  # (seeds, shares)
    compute = float(np.mean([cell.tflop for cell in cells.values()])) * np.array(shares)
    # Methods of the second arm name their start, ppo_from_filtered_bc, and load the end of its training.
    beginning = row.get(method.partition("_from_")[2] or START, {})
    starts = [beginning[seed].by_share[1.0] for seed in cells if seed in beginning]
    if len(starts) == len(cells):
        compute = np.concatenate([[0.0], compute])
        scores = np.column_stack([starts, scores])
    shade = colour(method)
    (line,) = axis.plot(compute, scores.mean(axis=0), dashes, color=shade, marker="o", markersize=3)
    if len(cells) > 1:
        axis.fill_between(compute, scores.min(axis=0), scores.max(axis=0), color=shade, alpha=0.15, linewidth=0)
    return line
