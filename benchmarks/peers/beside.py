"""Rows for two or more ways of doing the same, timed in turn: medians and ranges, and the ratios of ours to others."""

from collections.abc import Callable, Iterator, Mapping
from math import floor, log10
from statistics import median

from benchmarks.row import Row

__all__ = ["OURS", "REPEATS", "alternating", "beside"]

OURS = "lmrl"
REPEATS = 5


def alternating(ways: Mapping[str, Callable[[], float]], repeats: int = REPEATS) -> dict[str, list[float]]:
    """Return the speeds of each way (units per second), after one call of each that is not counted.

    Args:
        ways: by name; each does the work once and returns its speed.
        repeats: the counted calls of each. The ways take turns, so that other load of the machine affects all alike.
    """
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(1 + repeats):
        for name, way in ways.items():
            speed = way()
            speeds[name] += [speed] if number else []
    return speeds


def beside(
    what: str, unit: str, speeds: Mapping[str, list[float]], asked: Mapping[str, str] | None = None
) -> Iterator[Row]:
    """Yield a row for each way, and one for the ratio of ours to each other way.

    Args:
        what: the work that was done.
        unit: the unit of the speeds; more is better.
        speeds: as `alternating` returns them; `OURS` is one of them.
        asked: the wanted ratio, by the name of the other way.
    """
    for name, values in speeds.items():
        shown = f"{_short(median(values))} {unit} ({_short(min(values))} to {_short(max(values))})"
        yield Row(f"{what}, {name}", median(values), unit, "higher", shown=shown)
    for name, values in speeds.items():
        if name != OURS:
            # The ratio is that of the medians; its range is over calls that are neighbours in time.
            pairs = [ours / theirs for ours, theirs in zip(speeds[OURS], values, strict=True)]
            ratio = median(speeds[OURS]) / median(values)
            shown = f"{_short(ratio)}x ({_short(min(pairs))} to {_short(max(pairs))})"
            yield Row(f"{what}, {OURS} / {name}", ratio, "x", "higher", (asked or {}).get(name, ""), shown=shown)


def _short(value: float) -> str:
    """Return the number with at least three significant digits."""
    return f"{value:,.{max(0, 2 - floor(log10(value))) if value > 0 else 0}f}"
