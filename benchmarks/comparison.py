"""A run beside an earlier one: what has become worse."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.row import Row

__all__ = ["TOLERANCE", "Comparison", "compare", "is_worse"]

#: A figure that is worse by more than this share is a regression.
TOLERANCE = 0.1


class Comparison(NamedTuple):
    """What there is to say, and what has become worse."""

    lines: list[str]
    regressions: list[str]


def is_worse(old: float, new: float, better: str | None) -> bool:
    """Whether the new figure is worse by more than `TOLERANCE`; where no way is better, never."""
    if better == "higher":
        return new < (1 - TOLERANCE) * old
    return better == "lower" and new > (1 + TOLERANCE) * old


def compare(old: Mapping[str, Any], rows: Mapping[str, Sequence[Row]], machine: Mapping[str, Any]) -> Comparison:
    """Hold the rows of a run against a record of `benchmarks.results`, over the benchmarks that were run.

    On another machine (or with other threads) only ratios are compared: seconds there say nothing about seconds here.

    Args:
        old: the record.
        rows: by benchmark.
        machine: where they were measured.
    """
    before = {(row["benchmark"], row["name"]): row for row in old["rows"] if row["benchmark"] in rows}
    after = {(name, row.name): row for name, its in rows.items() for row in its}
    alike = old["machine"] == machine
    lines = [] if alike else ["another machine or other threads: only ratios are comparable"]
    regressions = []
    for key, row in after.items():
        if key not in before:
            lines.append(f"{_named(key)}: only in the new run")
        elif row.value is None or before[key]["value"] is None:
            lines.append(f"{_named(key)}: not measured in both runs")
        elif alike or row.is_ratio:
            worse = is_worse(before[key]["value"], row.value, row.better)
            lines.append(_line(key, before[key], row) + (", REGRESSION" if worse else ""))
            regressions += [_named(key)] if worse else []
    lines += [f"{_named(key)}: only in the old run" for key in before if key not in after]
    return Comparison(lines, regressions)


def _named(key: tuple[str, str]) -> str:
    return ": ".join(key)


def _line(key: tuple[str, str], old: Mapping[str, Any], row: Row) -> str:
    assert row.value is not None
    ratio = f"{row.value / old['value']:.2f}" if old["value"] else "-"
    direction = f" ({row.better} is better)" if row.better else ""
    return f"{_named(key)}: {old['shown']} -> {row.measured}, new / old {ratio}{direction}"
