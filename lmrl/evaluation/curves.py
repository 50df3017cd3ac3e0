"""Learning curves out of the CSV file that Lightning's logger writes."""

import csv
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TypeAlias

from lmrl.errors import UserError, in_one_line

__all__ = ["Curve", "Curves", "find_metrics", "read_curves", "values_at"]


class Curve(NamedTuple):
    """One logged quantity: as many steps as values, steps ascending."""

    steps: list[int]
    values: list[float]


Curves: TypeAlias = dict[str, Curve]
"""Column name, such as ``train/loss``, to its curve."""


def find_metrics(folder: Path) -> Path | None:
    """The newest ``metrics.csv`` of a run: in its folder or below (loggers make ``version_0`` and the like)."""
    found = sorted(folder.rglob("metrics.csv"), key=lambda path: (path.stat().st_mtime, str(path)))
    return found[-1] if found else None


def read_curves(path: Path) -> Curves:
    """Every numeric column of a ``metrics.csv`` against its ``step`` column, without the gaps.

    Lightning leaves cells empty where a quantity was not logged at that step; such cells, NaN, infinities
    and a last line that is still being written (without its line end) are passed over.

    Raises:
        UserError: for a cell that is no number; it names the file, the line and the column.
    """
    curves: Curves = {}
    for where, row in _rows(path):
        step = _number(row["step"], f"{where}, column 'step'") if row.get("step") else None
        if step is None:
            continue
        for name, cell in row.items():
            value = _number(cell, f"{where}, column {name!r}") if cell else None
            if name not in ("step", "epoch") and value is not None:
                curve = curves.setdefault(name, Curve([], []))
                curve.steps.append(int(step))
                curve.values.append(value)
    return {name: _sorted(curve) for name, curve in curves.items()}


def values_at(curve: Curve, steps: Sequence[int]) -> list[float]:
    """The curve's last value at or before each step; before its first one 0."""
    return [([0.0, *curve.values])[bisect_right(curve.steps, step)] for step in steps]


def _rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The complete lines as column to cell, each with its place."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error})") from error
    lines = csv.reader(StringIO(text[: text.rfind("\n") + 1], newline=""))
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


def _sorted(curve: Curve) -> Curve:
    pairs = sorted(zip(curve.steps, curve.values, strict=True), key=lambda pair: pair[0])
    return Curve([step for step, _ in pairs], [value for _, value in pairs])


def _number(cell: str, where: str) -> float | None:
    try:
        value = float(cell)
    except ValueError as error:
        raise UserError(f"{where}: must be a number, got {in_one_line(repr(cell), 60)}") from error
    return value if isfinite(value) else None
