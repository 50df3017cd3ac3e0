"""The report's pictures of what was played: probabilities of improvement, returns beside the data's, lengths."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lmrl.evaluation.aggregates import Improvement
from lmrl.evaluation.naming import colour, label, ordered
from lmrl.evaluation.plots import STYLE
from lmrl.evaluation.score import DATA, Score
from lmrl.evaluation.wording import number

__all__ = ["plot_improvements", "plot_lengths", "plot_returns_beside_data"]


def plot_improvements(panels: Mapping[str, Sequence[Improvement]], path: Path) -> None:
    """Draw a panel per task: how probably an episode of a player returns more than one of BC."""
    figure, axes = _grid(len(panels), 0.3 * max(map(len, panels.values())) + 0.9)
    with matplotlib.style.context(STYLE):
        for axis, (task, found) in zip(axes, panels.items(), strict=True):
            axis.axvline(0.5, color="#AAAAAA", linewidth=1, zorder=0)
            for place, one in enumerate(found):
                axis.plot(one.interval, [place] * 2, color=colour(one.name), linewidth=5, alpha=0.45, zorder=2)
                axis.plot(one.probability, place, "o", color=colour(one.name), ms=6, mec="white", zorder=3)
                axis.text(1.03, place, number(one.probability, 2), va="center", fontsize=8.5, color="#333333")
            axis.set_xlim(0, 1)
            axis.set_ylim(len(found) - 0.4, -0.6)
            axis.set_yticks(range(len(found)), [label(one.name) for one in found])
            axis.tick_params(axis="y", length=0)
            axis.set_title(task, fontweight="bold")
        figure.supxlabel("probability that an episode returns more than one of BC (ties count half)", size=9.5)
        figure.savefig(path)


def plot_returns_beside_data(panels: Mapping[str, Mapping[str, Score]], path: Path) -> None:
    """Draw a panel per task: which share of the episodes returns at most so much, in the data and of each player."""
    figure, axes = _grid(len(panels), 2.6)
    with matplotlib.style.context(STYLE):
        for axis, (task, players) in zip(axes, panels.items(), strict=True):
            for name in ordered(players):
                _share_curve(axis, players[name])
            axis.set_ylim(0, 1)
            axis.set_ylabel("share of episodes")
            axis.set_xlabel("return at most")
            axis.grid(axis="y", color="#EEEEEE", linewidth=0.8)
            axis.set_title(task, fontweight="bold")
        _legend(figure, {name for players in panels.values() for name in players})
        figure.savefig(path)


def plot_lengths(panels: Mapping[str, Mapping[str, Score]], path: Path) -> None:
    """Draw a row per player and task: turns (mean, and from the 10th to the 90th percentile) and illegal actions."""
    heights = [len(players) + 1.4 for players in panels.values()]
    with matplotlib.style.context(STYLE):
        figure = Figure(figsize=(9.0, 0.26 * sum(heights) + 0.8), layout="constrained")
        axes = figure.subplots(len(panels), 2, squeeze=False, height_ratios=heights)
        for (turns, illegal), (task, players) in zip(axes, panels.items(), strict=True):
            names = ordered(players)
            _turns(turns, [players[name] for name in names])
            _illegal(illegal, [players[name] for name in names])
            turns.set_title(task, fontweight="bold")
            for axis in (turns, illegal):
                axis.set_ylim(len(names) - 0.4, -0.6)
                axis.set_yticks(range(len(names)), [label(name) for name in names] if axis is turns else [])
                axis.tick_params(axis="y", length=0)
        axes[-1][0].set_xlabel("turns per episode: mean, 10 % to 90 %")
        axes[-1][1].set_xlabel("illegal actions, %")
        figure.savefig(path, dpi=120)


def _grid(count: int, height: float) -> tuple[Figure, list[Axes]]:
    columns = min(2, count)
    rows = -(-count // columns)
    with matplotlib.style.context(STYLE):
        figure = Figure(figsize=(5.4 * columns, height * rows + 0.7), layout="constrained")
        axes = [*figure.subplots(rows, columns, squeeze=False).flat]
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, axes[:count]


def _share_curve(axis: Axes, score: Score) -> None:
    values = np.sort(np.concatenate(score.returns))
    shares = np.arange(1, len(values) + 1) / len(values)
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
    lines = [
        Line2D(
            [],
            [],
            color="#DDDDDD" if name == DATA else colour(name),
            linewidth=6 if name == DATA else 2,
            label=label(name),
        )
        for name in ordered(names)
    ]
    figure.legend(handles=lines, loc="outside lower center", ncol=min(5, len(lines)))
