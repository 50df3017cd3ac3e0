"""Charts of scores, probabilities of improvement, returns and lengths, and the look that all pictures share."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lmrl.evaluation.aggregates import Improvement
from lmrl.evaluation.intervals import Interval
from lmrl.evaluation.records import DATA
from lmrl.evaluation.scores import Score
from lmrl.report.wording import colour, label, number, ordered, with_interval

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
"""Up to this number, panels stand below each other; more panels stand in two columns."""
_FARTHEST = (-40.0, 125.0)
"""Bars beyond these points are cut in the picture, but not in the numbers next to it."""


class Bar(NamedTuple):
    """A policy's line in the chart of scores."""

    name: str
    value: float | None
    """Normalised score; None if it was not evaluated."""
    interval: Interval | None = None
    """Over episodes."""
    published: float | None = None
    seeds: Interval | None = None
    """Over training seeds."""
    tuned: float | None = None
    """Score with the settings that were chosen."""


def grid_of_panels(count: int, most: int, width: float, height: float, more: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels, at most `most` in a row, and their axes. Call it with the style `STYLE`.

    Sizes are in inches; `more` is the height of the figure that is not for panels.
    """
    columns = min(most, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows + more), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:  # the last row may have room for more
        axis.set_axis_off()
    return figure, axes[:count]


def plot_scores(panels: Mapping[str, Sequence[Bar]], path: Path) -> None:
    """Draw a panel per task: bars for our normalised scores, diamonds for the published ones.

    Thin capped lines are 95 % intervals over episodes, thick grey ones over training seeds.
    """
    # `grid_of_panels` has rows of equal height; here a row per policy decides the height.
    columns = 1 if len(panels) <= _ONE_COLUMN else 2
    with matplotlib.style.context(STYLE):
        # A row of panels is as high as its longest panel needs, in units of bars.
        sizes = list(map(len, panels.values()))
        heights = [max(sizes[first : first + columns]) + 1.6 for first in range(0, len(sizes), columns)]
        figure = Figure(figsize=(8.6 * columns, 0.36 * sum(heights) + 1.0), layout="constrained")
        axes = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights, sharex=True)
        low, high = _range(list(chain.from_iterable(panels.values())))
        for axis, (title, bars) in zip(axes.flat, panels.items(), strict=False):
            axis.set_xlim(low, high)
            _score_panel(axis, title, bars)
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        for axis in axes.flat[max(0, len(panels) - columns) : len(panels)]:
            # `sharex` labels the last row only; a panel may also be the last one of its column.
            axis.tick_params(axis="x", labelbottom=True)
        figure.supxlabel("normalised score, points (0, 50, 100: published minimum, average, maximum)", size=9.5)
        figure.savefig(path)


def _range(bars: Sequence[Bar]) -> tuple[float, float]:
    """Return the ends of the horizontal axis: all that is shown, within limits, and at least 0 to 100."""
    low = 0.0
    high = 100.0
    for bar in bars:
        for end in (bar.value, bar.published, bar.tuned, *(bar.interval or ()), *(bar.seeds or ())):
            if end is not None:
                low = min(low, end)
                high = max(high, end)
    return max(_FARTHEST[0], low - 2), min(_FARTHEST[1], high + 3)


def _score_panel(axis: Axes, title: str, bars: Sequence[Bar]) -> None:
    low, high = axis.get_xlim()
    for mark in (0, 50, 100):
        axis.axvline(mark, color="#CCCCCC", linewidth=0.8, zorder=0)
    labels = []
    for place, bar in enumerate(bars):
        labels.append(label(bar.name))
        if bar.tuned is not None:
            axis.barh(place, bar.tuned, height=0.62, color=colour(bar.name), alpha=0.35, zorder=1)
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
        _numbers_beside(axis, place, _ours(bar), number(bar.published))
    axis.set_ylim(len(bars) - 0.4, -1.0)
    axis.set_yticks(range(len(bars)), labels)
    axis.tick_params(axis="y", length=0)
    axis.set_title(title, fontweight="bold")
    # The line above the first bar holds the heads of both columns.
    _numbers_beside(axis, -1.0, "ours [95 %], tuned", "◇ published", shade="#555555")


def _numbers_beside(axis: Axes, place: float, ours: str, published: str, shade: str = "#111111") -> None:
    """Write two columns to the right of the chart, at fixed distances from its edge."""
    for text, points, side in ((ours, 10, "left"), (published, 200, "right")):
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
    return with_interval(bar.value, bar.interval) + ("" if bar.tuned is None else f", {number(bar.tuned)}")


def plot_improvements(panels: Mapping[str, Sequence[Improvement]], path: Path) -> None:
    """Draw a panel per task: the probability that an episode of a method returns more than one of BC."""
    height = 0.3 * max(map(len, panels.values())) + 0.9
    with matplotlib.style.context(STYLE):
        figure, axes = grid_of_panels(len(panels), 2, 5.4, height, 0.7)
        for axis, (task, methods) in zip(axes, panels.items(), strict=True):
            axis.axvline(0.5, color="#AAAAAA", linewidth=1, zorder=0)
            labels = []
            for place, method in enumerate(methods):
                shade = colour(method.name)
                axis.plot(method.interval, [place] * 2, color=shade, linewidth=5, alpha=0.45, zorder=2)
                axis.plot(method.probability, place, "o", color=shade, ms=6, mec="white", zorder=3)
                axis.text(1.03, place, number(method.probability, 2), va="center", fontsize=8.5, color="#333333")
                labels.append(label(method.name))
            axis.set_xlim(0, 1)
            axis.set_ylim(len(methods) - 0.4, -0.6)
            axis.set_yticks(range(len(methods)), labels)
            axis.tick_params(axis="y", length=0)
            axis.set_title(task, fontweight="bold")
        figure.supxlabel("probability that an episode returns more than one of BC (ties count half)", size=9.5)
        figure.savefig(path)


def plot_returns_beside_data(panels: Mapping[str, Mapping[str, Score]], path: Path) -> None:
    """Draw a panel per task: the distribution function of returns, in the data and for each policy."""
    with matplotlib.style.context(STYLE):
        figure, axes = grid_of_panels(len(panels), 2, 5.4, 2.6, 0.7)
        for axis, (task, players) in zip(axes, panels.items(), strict=True):
            for name in ordered(players):
                _share_curve(axis, players[name])
            axis.set_ylim(0, 1)
            axis.set_ylabel("share of episodes")
            axis.set_xlabel("return at most")
            axis.grid(axis="y", color="#EEEEEE", linewidth=0.8)
            axis.set_title(task, fontweight="bold")
        _legend(figure, set(chain.from_iterable(panels.values())))
        figure.savefig(path)


def plot_lengths(panels: Mapping[str, Mapping[str, Score]], path: Path) -> None:
    """Draw a row per policy and task: turns (mean, and from the 10th to the 90th percentile) and illegal actions."""
    heights = [len(players) + 1.4 for players in panels.values()]
    with matplotlib.style.context(STYLE):
        figure = Figure(figsize=(9.0, 0.26 * sum(heights) + 0.8), layout="constrained")
        axes = figure.subplots(len(panels), 2, squeeze=False, height_ratios=heights)
        for (turns, illegal), (task, players) in zip(axes, panels.items(), strict=True):
            scores = [players[name] for name in ordered(players)]
            _turns(turns, scores)
            _illegal(illegal, scores)
            turns.set_title(task, fontweight="bold")
            # Only the left panel names the policies.
            turns.set_yticks(range(len(scores)), list(map(label, ordered(players))))
            illegal.set_yticks(range(len(scores)), [])
            for axis in (turns, illegal):
                axis.set_ylim(len(scores) - 0.4, -0.6)
                axis.tick_params(axis="y", length=0)
        axes[-1][0].set_xlabel("turns per episode: mean, 10 % to 90 %")
        axes[-1][1].set_xlabel("illegal actions, %")
        figure.savefig(path, dpi=120)


def _share_curve(axis: Axes, score: Score) -> None:
    values = np.sort(np.concatenate(score.returns))
    shares = np.arange(1, len(values) + 1) / len(values)
    # The data are the grey background of the policies' lines.
    if score.name == DATA:
        axis.fill_between(values, shares, step="post", color="#DDDDDD", linewidth=0, zorder=0)
    else:
        axis.step(values, shares, where="post", color=colour(score.name), linewidth=1.5, zorder=2)


def _turns(axis: Axes, scores: Sequence[Score]) -> None:
    for place, score in enumerate(scores):
        if score.lengths:
            spread = np.percentile(score.lengths, [10, 90])
            axis.plot(spread, [place] * 2, color=colour(score.name), linewidth=5, alpha=0.4)
        axis.plot(score.length_mean, place, "o", color=colour(score.name), ms=5, mec="white", clip_on=False)
    axis.set_xlim(left=0)
    axis.grid(axis="x", color="#EEEEEE", linewidth=0.8)


def _illegal(axis: Axes, scores: Sequence[Score]) -> None:
    shares = [100 * score.illegal_rate for score in scores]
    axis.barh(range(len(scores)), shares, height=0.62, color=[colour(score.name) for score in scores])
    # At least 1 %, so that a share of nearly nothing does not look like much; the rest is room for the numbers.
    axis.set_xlim(0, max(1.0, 1.18 * max(shares)))
    for place, share in enumerate(shares):
        axis.annotate(
            number(share, 2),
            (share, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color="#333333",
        )


def _legend(figure: Figure, names: set[str]) -> None:
    lines = []
    for name in ordered(names):
        if name == DATA:  # an area in the panels
            lines.append(Line2D([], [], color="#DDDDDD", linewidth=6, label=label(name)))
        else:
            lines.append(Line2D([], [], color=colour(name), linewidth=2, label=label(name)))
    figure.legend(handles=lines, loc="outside lower center", ncol=min(5, len(lines)))
