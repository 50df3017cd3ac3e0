"""The report's learning curves: return in interactive evaluation, and the terms of each loss."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lmrl.evaluation.curves import Curve, Curves
from lmrl.evaluation.naming import colour, label
from lmrl.evaluation.plots import STYLE

__all__ = ["plot_curves"]

_TERMS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


def plot_curves(panels: Mapping[str, Mapping[str, Curves]], path: Path, columns: int = 3) -> None:
    """Draw a block per task: the return in interactive evaluation of all algorithms, then each one's loss terms.

    Args:
        panels: task to algorithm to its curves.
        path: where the PNG goes.
        columns: how many charts stand side by side.
    """
    with matplotlib.style.context(STYLE):
        rows = [-(-(1 + len(runs)) // columns) for runs in panels.values()]
        figure = Figure(figsize=(4.2 * columns, 3.1 * sum(rows) + 0.35 * len(rows)), layout="constrained")
        blocks = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=rows)[:, 0]
        for block, count, (task, runs) in zip(blocks, rows, panels.items(), strict=True):
            block.suptitle(task, x=0.01, ha="left", fontsize=13, fontweight="bold", color="#111111")
            axes = list(block.subplots(count, columns, squeeze=False).flat)
            _return_panel(axes[0], runs)
            for axis, (name, curves) in zip(axes[1:], runs.items(), strict=False):
                _loss_panel(axis, name, curves)
            for axis in axes[1 + len(runs) :]:
                axis.set_axis_off()
        figure.savefig(path)


def _return_panel(axis: Axes, runs: Mapping[str, Curves]) -> None:
    drawn = 0
    for name, curves in runs.items():
        for column, curve in curves.items():
            if column.startswith("eval/") and column.endswith("/return_mean"):
                axis.plot(*curve, color=colour(name), marker="o", markersize=3, linewidth=1.4, label=label(name))
                drawn += 1
    _frame(axis, "return in interactive evaluation", "mean return per episode", drawn)


def _loss_panel(axis: Axes, name: str, curves: Curves) -> None:
    terms = sorted(column for column in curves if _is_term(column))
    for shade, column in zip(_TERMS, terms, strict=False):
        axis.plot(*curves[column], color=shade, linewidth=0.6, alpha=0.3)
        axis.plot(*_smoothed(curves[column]), color=shade, linewidth=1.2, label=column.rsplit("/", 1)[-1])
    total = "sum" if terms else "loss"
    for column, words, dashes in (("train/loss", total, "-"), ("val/loss", f"{total}, held-out episodes", ":")):
        if column in curves:
            axis.plot(*_smoothed(curves[column]), color="#222222", linewidth=1.6, linestyle=dashes, label=words)
            terms.append(column)
    values = [value for column in terms for value in curves[column].values]
    if values and min(values) > 0 and max(values) > 30 * min(values):
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
    _frame(axis, f"{label(name)}: training loss", "loss (mean per action token)", len(terms))


def _is_term(column: str) -> bool:
    """``ilql/q_loss``, not ``val/ilql/q_loss`` and not ``train/loss``."""
    return column.count("/") == 1 and column.endswith("_loss") and not column.startswith("val/")


def _smoothed(curve: Curve, parts: int = 40) -> Curve:
    """A running mean over a fortieth of the curve; its ends lean inwards, nothing is padded."""
    half = len(curve.values) // (2 * parts)
    if half == 0:
        return curve
    sums = np.concatenate([[0.0], np.cumsum(curve.values)])
    places = np.arange(len(curve.values))
    first, last = np.maximum(places - half, 0), np.minimum(places + half + 1, len(places))
    return Curve(curve.steps, ((sums[last] - sums[first]) / (last - first)).tolist())


def _frame(axis: Axes, title: str, unit: str, drawn: int) -> None:
    axis.set_title(title)
    axis.set_xlabel("optimizer step")
    axis.set_ylabel(unit)
    axis.grid(axis="y", color="#EEEEEE", linewidth=0.8)
    if not drawn:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.text(0.5, 0.5, "nothing logged", transform=axis.transAxes, ha="center", color="#888888")
        return
    handles = [line for line in axis.get_lines() if not str(line.get_label()).startswith("_")]
    axis.legend(
        handles=[_key(line) for line in handles],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.22),
        ncol=min(4 if drawn <= 4 else 3, drawn),
        handlelength=1.0,
        columnspacing=1.2,
    )


def _key(line: Line2D) -> Line2D:
    return Line2D([], [], color=line.get_color(), linestyle=line.get_linestyle(), linewidth=2.5, label=line.get_label())
