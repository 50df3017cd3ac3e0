"""Learning curves out of the CSV file that Lightning's logger writes."""

import csv
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TypeAlias

__all__ = ["Curve", "Curves", "find_metrics", "read_curves"]


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
    and a last line that is still being written are passed over.
    """
    curves: Curves = {}
    with path.open(newline="", encoding="utf-8", errors="replace") as lines:
        for row in csv.DictReader(lines):
            step = _number(row.get("step"))
            if step is None:
                continue
            for name, cell in row.items():
                value = _number(cell)
                if isinstance(name, str) and name not in ("step", "epoch") and value is not None:
                    curve = curves.setdefault(name, Curve([], []))
                    curve.steps.append(int(step))
                    curve.values.append(value)
    return {name: _sorted(curve) for name, curve in curves.items()}


def _sorted(curve: Curve) -> Curve:
    pairs = sorted(zip(curve.steps, curve.values, strict=True), key=lambda pair: pair[0])
    return Curve([step for step, _ in pairs], [value for _, value in pairs])


def _number(cell: object) -> float | None:
    try:
        value = float(str(cell))
    except ValueError:
        return None
    return value if isfinite(value) else None
