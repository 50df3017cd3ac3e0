"""A resumed run keeps the numbers that it logged before."""

import csv
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["continued_metrics"]


@contextmanager
def continued_metrics(folder: Path) -> Iterator[None]:
    """Put an earlier ``metrics.csv`` aside while Lightning, which would delete it, writes a new one; then join them.

    Should the process be killed in between, the earlier rows are in ``metrics.before.csv`` and join at the next resume.
    """
    now, before = folder / "metrics.csv", folder / "metrics.before.csv"
    if now.is_file():
        _write(before, [*_rows(before), *_rows(now)])
        now.unlink()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Experiment logs directory .* will be deleted")
            yield
    finally:
        if before.is_file():
            _write(now, [*_rows(before), *_rows(now)])
            before.unlink()


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    new = path.with_suffix(".new")
    with new.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    new.replace(path)
