"""The report's chart of scores, and the look that all its pictures share."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lmrl.evaluation.intervals import Interval
from lmrl.evaluation.naming import colour, label
from lmrl.evaluation.wording import number, with_interval

__all__ = ["STYLE", "Bar", "plot_scores"]

STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333",
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titlecolor": "#111111",
    "xtick.color": "#555555",
    "ytick.color": "#333333",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "text.parse_math": False,  # names and texts come from files: a dollar sign is a dollar sign
    "savefig.dpi": 160,
}
_ONE_COLUMN = 3
"""So many panels stand below each other; more stand in two columns."""
_FARTHEST = (-40.0, 125.0)
"""Bars beyond are cut in the picture, never in the numbers beside it."""


class Bar(NamedTuple):
    """One player's line in the chart of scores."""

    name: str
    value: float | None
    """Normalised score, or None where we have none."""
    interval: Interval | None = None
    """Over episodes."""
    published: float | None = None
    seeds: Interval | None = None
    """Over training seeds."""


def plot_scores(panels: Mapping[str, Sequence[Bar]], path: Path) -> None:
    """Draw a panel per task: bars for our normalised scores, diamonds for the published ones.

    Thin capped lines are 95 % intervals over episodes, thick grey ones over training seeds.
    """
    columns = 1 if len(panels) <= _ONE_COLUMN else 2
    with matplotlib.style.context(STYLE):
        rows = -(-len(panels) // columns)
        most = [max(len(bars) for bars in [*panels.values()][row * columns :][:columns]) + 1.6 for row in range(rows)]
        figure = Figure(figsize=(8.6 * columns, 0.36 * sum(most) + 1.0), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, height_ratios=most, sharex=True)
        low, high = _range([bar for bars in panels.values() for bar in bars])
        for axis, (title, bars) in zip(axes.flat, panels.items(), strict=False):
            axis.set_xlim(low, high)
            _score_panel(axis, title, bars)
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        for axis in axes.flat[max(0, len(panels) - columns) : len(panels)]:
            axis.tick_params(axis="x", labelbottom=True)  # also where nothing stands below in the last row
        figure.supxlabel("normalised score, points (0, 50, 100: published minimum, average, maximum)", size=9.5)
        figure.savefig(path)


def _range(bars: Sequence[Bar]) -> tuple[float, float]:
    ends = [end for bar in bars for end in (bar.value, bar.published, *(bar.interval or ())) if end is not None]
    ends += [end for bar in bars if bar.seeds is not None for end in bar.seeds]
    low, high = min([0.0, *ends]), max([100.0, *ends])
    return max(_FARTHEST[0], low - 2), min(_FARTHEST[1], high + 3)


def _score_panel(axis: Axes, title: str, bars: Sequence[Bar]) -> None:
    low, high = axis.get_xlim()
    for mark in (0, 50, 100):
        axis.axvline(mark, color="#CCCCCC", linewidth=0.8, zorder=0)
    for place, bar in enumerate(bars):
        if bar.value is not None:
            axis.barh(place, bar.value, height=0.62, color=colour(bar.name), alpha=0.85, zorder=2)
        if bar.value is not None and bar.interval is not None:
            if bar.seeds is not None:
                axis.plot(
                    np.clip(bar.seeds, low, high), [place] * 2, color="#222222", alpha=0.35, linewidth=6, zorder=3
                )
            reach = [[max(0.0, bar.value - bar.interval.low)], [max(0.0, bar.interval.high - bar.value)]]
            axis.errorbar(bar.value, place, xerr=reach, color="#222222", capsize=2.5, linewidth=1.1, zorder=4)
        if bar.published is not None:
            axis.plot(np.clip(bar.published, low, high), place, "D", ms=5.5, mfc="white", mec="#111111", zorder=5)
        _beside(axis, place, _ours(bar), number(bar.published))
    axis.set_ylim(len(bars) - 0.4, -1.0)
    axis.set_yticks(range(len(bars)), [label(bar.name) for bar in bars])
    axis.tick_params(axis="y", length=0)
    axis.set_title(title, fontweight="bold")
    _beside(axis, -1.0, "ours [95 %]", "◇ published", shade="#555555")


def _beside(axis: Axes, place: float, ours: str, published: str, shade: str = "#111111") -> None:
    """Write two columns to the right of the chart, at fixed distances from its edge."""
    for text, points, side in ((ours, 10, "left"), (published, 170, "right")):
        axis.annotate(
            text,
            xy=(1.0, place),
            xycoords=axis.get_yaxis_transform(),
            xytext=(points, 0),
            textcoords="offset points",
            va="center",
            ha=side,
            fontsize=8.5,
            color=shade,
            annotation_clip=False,
        )


def _ours(bar: Bar) -> str:
    if bar.value is None or bar.interval is None:
        return number(bar.value)
    return with_interval(bar.value, bar.interval)
