"""Two or more ways of doing the same, timed in turn, as rows: the median of each, its range, and ours by each other."""

from collections.abc import Callable, Iterator, Mapping
from math import floor, log10
from statistics import median

from benchmarks.row import Row

__all__ = ["OURS", "REPEATS", "alternating", "beside"]

OURS = "lmrl"
REPEATS = 5


def alternating(ways: Mapping[str, Callable[[], float]], repeats: int = REPEATS) -> dict[str, list[float]]:
    """What each way returns (units per second), after one call of each that is not counted.

    Args:
        ways: by name; each does the work once and returns its speed.
        repeats: how often each is counted, in turn with the others: what else the machine does falls on all alike.
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
    """A row for each way, and one for ours by each other's.

    Args:
        what: was done.
        unit: of the speeds; more is better.
        speeds: as `alternating` has them; `OURS` is one.
        asked: of the ratio, by the name of the other way.
    """
    for name, values in speeds.items():
        shown = f"{_short(median(values))} {unit} ({_short(min(values))} to {_short(max(values))})"
        yield Row(f"{what}, {name}", median(values), unit, "higher", shown=shown)
    for name, values in speeds.items():
        if name != OURS:
            # Of medians; the range is that of neighbours in time.
            pairs = [ours / theirs for ours, theirs in zip(speeds[OURS], values, strict=True)]
            ratio = median(speeds[OURS]) / median(values)
            shown = f"{_short(ratio)}x ({_short(min(pairs))} to {_short(max(pairs))})"
            yield Row(f"{what}, {OURS} / {name}", ratio, "x", "higher", (asked or {}).get(name, ""), shown=shown)


def _short(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.{max(0, 2 - floor(log10(value))) if value > 0 else 0}f}"
