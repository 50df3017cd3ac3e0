"""All pictures of a report, learning curves among them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lmrl.envs import registry
from lmrl.envs.task import ProbePlot
from lmrl.evaluation.aggregates import improvements
from lmrl.evaluation.curves import Curve, Curves, values_at
from lmrl.evaluation.records import Record
from lmrl.evaluation.scores import Score
from lmrl.report.plots import STYLE, Bar, plot_improvements, plot_lengths, plot_returns_beside_data, plot_scores
from lmrl.report.wording import colour, label, ordered

__all__ = [
    "draw",
    "draw_curves",
    "draw_probes",
    "draw_scores",
    "plot_excess",
    "plot_losses",
    "plot_probes",
    "plot_returns",
]

_STEPS = "optimizer step"
_EXCESS = "val/bc/excess"
_TERMS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


class Along(NamedTuple):
    """The horizontal axis of a learning curve: a logged quantity, in its last value before each evaluation."""

    column: str
    unit: str
    scale: float = 1.0


MINUTES = Along("time/train_seconds", "minutes of training", 1 / 60)
EPISODES = Along("rollout/episodes", "episodes drawn")


def _panels(count: int, most: int, width: float, height: float, more: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with a number of panels of that size, in rows of limited length, and its axes."""
    columns = min(most, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows + more), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, axes


def plot_returns(panels: Mapping[str, Mapping[str, Sequence[Curves]]], path: Path, along: Along | None = None) -> None:
    """Draw a panel per task: the return in interactive evaluation, mean over the seeds and the range of them.

    Args:
        panels: task to algorithm to the curves of each seed.
        path: where the picture goes.
        along: what it is drawn over; runs that did not log it are left out. None: optimizer steps.
    """
    with matplotlib.style.context(STYLE):
        figure, axes = _panels(len(panels), 2, 5.6, 3.0, 0.5)
        for axis, (task, runs) in zip(axes, panels.items(), strict=False):
            drawn = sum(_return_curve(axis, name, seeds, along) for name, seeds in runs.items())
            _frame(axis, task, "mean return per episode", drawn, _STEPS if along is None else along.unit)
        figure.savefig(path)


def plot_excess(panels: Mapping[str, Sequence[Curves]], path: Path) -> None:
    """Draw a panel per task: by how many nats an action BC's held-out loss is above the floor, a line per seed.

    Args:
        panels: task to the curves of each seed of BC.
        path: where the picture goes.
    """
    with matplotlib.style.context(STYLE):
        figure, axes = _panels(len(panels), 3, 4.2, 2.4, 0.2)
        for axis, (task, seeds) in zip(axes, panels.items(), strict=False):
            for curves in seeds:
                axis.plot(*curves[_EXCESS], color=colour("bc"), marker="o", markersize=3, linewidth=1.4)
            axis.set_title(task)
            axis.set_xlabel(_STEPS)
            axis.set_ylabel("nats per action")
            axis.set_ylim(bottom=0)
            axis.grid(axis="y", color="#EEEEEE", linewidth=0.8)
        figure.savefig(path)


def plot_losses(runs: Mapping[str, Curves], path: Path, columns: int = 3) -> None:
    """Draw the loss terms of each algorithm.

    Args:
        runs: algorithm to its curves.
        path: where the picture goes.
        columns: how many charts stand side by side.
    """
    with matplotlib.style.context(STYLE):
        figure, axes = _panels(len(runs), columns, 4.2, 3.1, 0.2)
        for axis, (name, curves) in zip(axes, runs.items(), strict=False):
            _loss_panel(axis, name, curves)
        figure.savefig(path, dpi=110)


def plot_probes(plot: ProbePlot, probes: Mapping[str, Any], path: Path, title: str = "") -> None:
    """Draw what a task's probe found, a panel for each policy.

    Args:
        plot: draws one panel.
        probes: policy name to what its probe found; at least one.
        path: where the PNG goes.
        title: above the whole picture.
    """
    with matplotlib.style.context(STYLE):
        figure, axes = _panels(len(probes), 2, *plot.size(next(iter(probes.values()))), 0.4 if title else 0.0)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color="#111111")
        for axis, (name, probe) in zip(axes, probes.items(), strict=False):
            plot.draw(axis, label(name), probe)
        figure.savefig(path)


def _return_curve(axis: Axes, name: str, seeds: Sequence[Curves], along: Along | None) -> int:
    found = [curves for curves in seeds if along is None or along.column in curves]
    curves = [curve for curve in map(_returns, found) if curve is not None]
    common = sorted(set.intersection(*(set(curve.steps) for curve in curves))) if curves else []
    if not common:
        return 0
    steps: Sequence[float] = common
    if along is not None:
        steps = np.mean([values_at(run[along.column], common) for run in found], axis=0) * along.scale
    values = np.array([[dict(zip(*curve, strict=True))[step] for step in common] for curve in curves])
    means = values.mean(axis=0)
    axis.plot(steps, means, color=colour(name), marker="o", markersize=3, linewidth=1.4, label=label(name))
    if len(curves) > 1:
        axis.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour(name), alpha=0.18, linewidth=0)
    return 1


def _returns(curves: Curves) -> Curve | None:
    found = [curve for name, curve in curves.items() if name.startswith("eval/") and name.endswith("/return_mean")]
    return found[0] if found else None


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
    first = np.maximum(places - half, 0)
    last = np.minimum(places + half + 1, len(places))
    return Curve(curve.steps, ((sums[last] - sums[first]) / (last - first)).tolist())


def _frame(axis: Axes, title: str, unit: str, drawn: int, over: str = _STEPS) -> None:
    axis.set_title(title)
    axis.set_xlabel(over)
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


def draw(
    found: Mapping[str, Mapping[str, Mapping[int, Record]]],
    curves: Mapping[str, Mapping[str, Mapping[int, Curves]]],
    scores: Mapping[str, Mapping[str, Score]],
    out: Path,
) -> list[Path]:
    """Draw what there is something to draw of.

    Args:
        found: task to player to training seed to record.
        curves: task to player to training seed to learning curves.
        scores: task to player to score, the data among the players.
        out: folder for the pictures.
    """
    return [*_of_scores(scores, out), *draw_curves(curves, out), *draw_probes(found, out)]


def draw_scores(scores: Mapping[str, Mapping[str, Score]], path: Path) -> bool:
    """Draw the normalised scores of all tasks that have a scale; return whether there is one.

    Args:
        scores: task to player to score.
        path: where the picture goes.
    """
    scaled = {task: _bars(task, players) for task, players in scores.items() if registry.task(task).scores.any_scale}
    if scaled:
        plot_scores(scaled, path)
    return bool(scaled)


def _of_scores(scores: Mapping[str, Mapping[str, Score]], out: Path) -> Iterator[Path]:
    if draw_scores(scores, out / "scores.png"):
        yield out / "scores.png"
    better = {task: improvements(players, ordered(_played(players))) for task, players in scores.items()}
    if any(better.values()):
        plot_improvements({task: of for task, of in better.items() if of}, out / "improvement.png")
        yield out / "improvement.png"
    plot_returns_beside_data(scores, out / "returns.png")
    yield out / "returns.png"
    plot_lengths(scores, out / "lengths.png")
    yield out / "lengths.png"


def draw_curves(curves: Mapping[str, Mapping[str, Mapping[int, Curves]]], out: Path) -> Iterator[Path]:
    """Draw returns over steps, minutes and episodes, the excess of BC, and the loss terms of each task.

    Args:
        curves: task to player to training seed to learning curves.
        out: folder for the pictures.

    Yields:
        The path of each picture, when it is drawn.
    """
    trained: dict[str, dict[str, list[Curves]]] = {}
    for task, players in curves.items():
        for name in ordered(players):
            trained.setdefault(task, {})[name] = list(players[name].values())
    if trained:
        plot_returns(trained, out / "learning_curves.png")
        yield out / "learning_curves.png"
    for along, name in ((MINUTES, "minutes.png"), (EPISODES, "samples.png")):
        logged = {
            task: {name: seeds for name, seeds in runs.items() if any(along.column in curves for curves in seeds)}
            for task, runs in trained.items()
        }
        if any(logged.values()):
            plot_returns({task: runs for task, runs in logged.items() if runs}, out / name, along)
            yield out / name
    cloned = {task: runs["bc"] for task, runs in trained.items() if "bc" in runs}
    above = {task: [of for of in seeds if _EXCESS in of] for task, seeds in cloned.items()}
    if any(above.values()):
        plot_excess({task: seeds for task, seeds in above.items() if seeds}, out / "excess.png")
        yield out / "excess.png"
    for task, runs in trained.items():
        plot_losses({name: seeds[0] for name, seeds in runs.items()}, out / f"losses_{task}.png")
        yield out / f"losses_{task}.png"


def draw_probes(found: Mapping[str, Mapping[str, Mapping[int, Record]]], out: Path) -> Iterator[Path]:
    """Draw what the probe of each task found, of the first training seed of each player.

    Args:
        found: task to player to training seed to record.
        out: folder for the pictures.

    Yields:
        The path of each picture, when it is drawn.
    """
    for task, players in found.items():
        first = {name: next(iter(players[name].values())).probe for name in ordered(players)}
        probes = {name: probe for name, probe in first.items() if probe is not None}
        plot = registry.probe_plot(task)
        if probes and plot is not None:
            path = out / plot.file_name(task)
            plot_probes(plot, probes, path, task)
            yield path


def _bars(task: str, players: Mapping[str, Score]) -> list[Bar]:
    published = registry.task(task).scores.normalized
    return [
        Bar(
            name,
            ours.normalized,
            ours.over_episodes,
            published.get(name),
            ours.over_seeds,
            None if ours.tuned is None else ours.tuned.normalized,
        )
        for name in ordered(players)
        for ours in [players[name]]
    ]


def _played(players: Mapping[str, Score]) -> list[str]:
    return [name for name, score in players.items() if score.by_seed]
