"""Learning curves, read from the CSV file that Lightning's logger writes."""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from lmrl.errors import UserError, in_one_line

__all__ = ["Curve", "Curves", "find_metrics", "read_curves", "values_at"]


class Curve(NamedTuple):
    """One logged quantity at ascending steps."""

    steps: list[int]
    values: list[float]


Curves: TypeAlias = dict[str, Curve]
"""Column name, such as ``train/loss``, to its curve."""


def find_metrics(folder: Path) -> Path | None:
    """Return the newest ``metrics.csv`` of a run: in its folder or below (loggers make ``version_0`` and the like)."""
    return max(folder.rglob("metrics.csv"), key=lambda path: (path.stat().st_mtime, str(path)), default=None)


def read_curves(path: Path) -> Curves:
    """Read every column of a ``metrics.csv`` against its ``step`` column, without the gaps.

    Lightning leaves cells empty where a quantity was not logged at that step. Such cells, NaN, infinities and a last
    line that is still being written (without its line end) are left out.

    Raises:
        UserError: a cell is no number; the message names the file, the line and the column.
    """
    curves: Curves = {}
    for where, cells in _rows(path):
        step = _number(cells["step"], f"{where}, column 'step'") if cells.get("step") else None
        if step is None:
            continue
        for name, cell in cells.items():
            value = _number(cell, f"{where}, column {name!r}") if cell else None
            if name not in ("step", "epoch") and value is not None:
                curve = curves.setdefault(name, Curve([], []))
                curve.steps.append(int(step))
                curve.values.append(value)
    for name, curve in curves.items():
        # A training that was resumed logs some steps again, after later ones.
        pairs = sorted(zip(curve.steps, curve.values, strict=True), key=itemgetter(0))
        steps, values = zip(*pairs, strict=True)
        curves[name] = Curve(list(steps), list(values))
    return curves


def values_at(curve: Curve, steps: Sequence[int], before: bool = False) -> list[float]:
    """Return the curve's last value at or before each step, and 0 before its first value.

    Args:
        curve: what was logged.
        steps: optimizer steps.
        before: values at the step itself do not count.
    """
    from_zero = np.array([0.0, *curve.values])
    side: Literal["left", "right"] = "left" if before else "right"
    values: list[float] = from_zero[np.searchsorted(curve.steps, steps, side=side)].tolist()
    return values


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the complete lines: file and line number, and column name to cell."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error})") from error
    # The logger may be writing the last line right now.
    complete = text[: text.rfind("\n") + 1]
    lines = csv.reader(StringIO(complete, newline=""))
    names: list[str] = []
    try:
        for cells in lines:
            where = f"{path}, line {lines.line_num}"
            if cells and not names:
                names = cells
                if "step" not in names or len({*names}) < len(names):
                    raise UserError(
                        f"{where}: must name each column once, one of them step, got {in_one_line(str(names))}"
                    )
            elif cells:
                if len(cells) != len(names):
                    raise UserError(f"{where}: {len(cells)} cells, but {len(names)} columns")
                yield where, dict(zip(names, cells, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}, line {lines.line_num}: {in_one_line(error)}") from error


def _number(cell: str, where: str) -> float | None:
    try:
        value = float(cell)
    except ValueError as error:
        raise UserError(f"{where}: must be a number, got {in_one_line(repr(cell), 60)}") from error
    return value if isfinite(value) else None
