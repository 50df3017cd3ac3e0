"""All pictures of a report, learning curves among them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lmrl.envs import registry
from lmrl.envs.task import ProbePlot
from lmrl.errors import UserError
from lmrl.evaluation.aggregates import improvements
from lmrl.evaluation.curves import Curve, Curves, values_at
from lmrl.evaluation.records import Record
from lmrl.evaluation.scores import Score
from lmrl.report.plots import (
    STYLE,
    Bar,
    grid_of_panels,
    plot_improvements,
    plot_lengths,
    plot_returns_beside_data,
    plot_scores,
)
from lmrl.report.wording import colour, label, ordered

_STEPS = "optimizer step"
_EXCESS = "val/bc/excess"
# The palette of Okabe and Ito, distinct for all common kinds of colour vision.
_DASHES = ("-", "--", ":", "-.")
_AS_LOGGED: dict[str, Any] = {"linewidth": 0.6, "alpha": 0.3}
"""Style of a curve behind its running mean."""
_TERMS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


class Along(NamedTuple):
    """The horizontal axis of a learning curve: a logged quantity that grows with the steps."""

    column: str
    unit: str
    scale: float = 1.0
    is_even: bool = False
    """Whether it grows evenly between two logged values. Otherwise a value holds until the next one."""


MINUTES = Along("time/train_seconds", "minutes of training", 1 / 60, is_even=True)
EPISODES = Along("rollout/episodes", "episodes drawn")


def plot_returns(panels: Mapping[str, Mapping[str, Sequence[Curves]]], path: Path, along: Along | None = None) -> None:
    """Draw a panel per task: the return in interactive evaluation, mean over the seeds and the range of them.

    Args:
        panels: task to algorithm to the curves of each seed.
        path: where the picture goes.
        along: the horizontal axis; runs that did not log it are left out. None: optimizer steps.
    """
    with matplotlib.style.context(STYLE):
        figure, axes = grid_of_panels(len(panels), 2, 5.6, 3.0, 0.5)
        for axis, (task, runs) in zip(axes, panels.items(), strict=True):
            drawn = 0
            for name, seeds in runs.items():
                drawn += _return_curve(axis, name, seeds, along)
            _frame(axis, task, "mean return per episode", drawn, _STEPS if along is None else along.unit)
        figure.savefig(path)


def plot_excess(panels: Mapping[str, Sequence[Curves]], path: Path) -> None:
    """Draw a panel per task: by how many nats an action BC's held-out loss is above the floor, a line per seed.

    Args:
        panels: task to the curves of each seed of BC.
        path: where the picture goes.
    """
    with matplotlib.style.context(STYLE):
        figure, axes = grid_of_panels(len(panels), 3, 4.2, 2.4, 0.2)
        for axis, (task, seeds) in zip(axes, panels.items(), strict=True):
            for curves in seeds:
                axis.plot(*curves[_EXCESS], color=colour("bc"), marker="o", markersize=3, linewidth=1.4)
            axis.set_title(task)
            axis.set_xlabel(_STEPS)
            axis.set_ylabel("nats per action")
            # No clone can be below the entropy of the recorded policy, which is at 0.
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
        figure, axes = grid_of_panels(len(runs), columns, 4.2, 3.1, 0.2)
        for axis, (name, curves) in zip(axes, runs.items(), strict=True):
            _loss_panel(axis, name, curves)
        figure.savefig(path, dpi=110)


def plot_runs(runs: Mapping[str, Curves], keys: Sequence[str], path: Path, along: Along | None = None) -> None:
    """Draw a panel for each logged key and in it a line for each run that logged it.

    Args:
        runs: name to curves.
        keys: logged keys.
        path: where the picture goes; its ending says in which format.
        along: the horizontal axis; None: optimizer steps.

    Raises:
        UserError: a run did not log the horizontal axis.
    """
    with matplotlib.style.context(STYLE):
        figure, axes = grid_of_panels(len(keys), 2, 5.6, 3.0, 0.5)
        for axis, key in zip(axes, keys, strict=True):
            drawn = 0
            for number, (name, curves) in enumerate(runs.items()):
                if key not in curves:
                    continue
                curve = _one_per_step(curves[key])
                smoothed = curve if key.startswith("eval/") else _smoothed(curve)
                shade, dashes = _style(number)
                positions = _positions(name, curves, key, curve.steps, along)
                # A line of one point would not be seen.
                marker = "o" if len(curve.values) == 1 else "None"
                if smoothed is not curve:
                    axis.plot(positions, curve.values, color=shade, **_AS_LOGGED)
                axis.plot(
                    positions, smoothed.values, color=shade, linestyle=dashes, linewidth=1.4, marker=marker, label=name
                )
                drawn += 1
            _frame(axis, key, "", drawn, _STEPS if along is None else along.unit)
        figure.savefig(path)


def _style(number: int) -> tuple[str, str]:
    """Return colour and dashes of one of many lines: colours are repeated with other dashes."""
    return _TERMS[number % len(_TERMS)], _DASHES[number // len(_TERMS) % len(_DASHES)]


def _one_per_step(curve: Curve) -> Curve:
    """Return a curve with the mean of what was logged at each step: rounds of a critic's warm-up end in no step."""
    steps, places = np.unique(curve.steps, return_inverse=True)
    means = np.bincount(places, weights=curve.values) / np.bincount(places)
    return Curve(steps.tolist(), means.tolist())


def _positions(name: str, curves: Curves, key: str, steps: Sequence[int], along: Along | None) -> Sequence[float]:
    """Return where the values of a key at these steps stand on the horizontal axis."""
    if along is None:
        return steps
    if along.column not in curves:
        raise UserError(f"{name} did not log {along.column}: leave out --along")
    return _along(along, curves, steps, is_evaluation=key.startswith("eval/"))


def _along(along: Along, curves: Curves, steps: Sequence[int], is_evaluation: bool) -> list[float]:
    logged = curves[along.column]
    if along.is_even:
        positions = np.interp(steps, [0, *logged.steps], [0.0, *logged.values])
        if not is_evaluation:
            # After the last logged value, the mean pace of the run goes on.
            late = np.maximum(0, np.array(steps) - logged.steps[-1])
            positions += late * logged.values[-1] / max(1, logged.steps[-1])
        scaled: list[float] = (along.scale * positions).tolist()
        return scaled
    # An evaluation comes before the round that is logged at the same step.
    before = is_evaluation and along.column.startswith("rollout/")
    return [along.scale * value for value in values_at(logged, steps, before)]


#: What `plot_health` shows, by the keys of the group ``health/``.
_SIGNS = {
    "return": "return",
    "entropy": "entropy (nats per token)",
    "kl_to_last_round": "KL to the last round",
    "clip_fraction": "share of tokens clipped",
    "critic_share": "critic's share of the gradient",
    "noise_scale": "noise scale (episodes)",
}


def plot_health(runs: Mapping[str, Curves], path: Path) -> None:
    """Draw the signs of health of online runs, a panel for each sign and a line for each run.

    Args:
        runs: name to curves of the keys ``health/…``, over episodes drawn in place of steps.
        path: where the picture goes.
    """
    with matplotlib.style.context(STYLE):
        figure, axes = grid_of_panels(len(_SIGNS), 3, 4.2, 2.6, 0.5)
        longest = max(curve.steps[-1] for curves in runs.values() for curve in curves.values())
        for axis, (sign, title) in zip(axes, _SIGNS.items(), strict=True):
            drawn = 0
            for number, (name, curves) in enumerate(runs.items()):
                if f"health/{sign}" in curves:
                    shade, dashes = _style(number)
                    _plot_smoothed(
                        axis, curves[f"health/{sign}"], color=shade, linestyle=dashes, linewidth=1.4, label=name
                    )
                    drawn += 1
            axis.set_title(title)
            axis.set_xlabel(EPISODES.unit)
            axis.set_xlim(0, longest)
            axis.locator_params(axis="x", nbins=4)
            axis.grid(axis="y", color="#EEEEEE", linewidth=0.8)
            if sign == "noise_scale":
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter("{x:,.0f}")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncol=len(labels))
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
        figure, axes = grid_of_panels(len(probes), 2, *plot.size(next(iter(probes.values()))), 0.4 if title else 0.0)
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color="#111111")
        for axis, (name, probe) in zip(axes, probes.items(), strict=True):
            plot.draw(axis, label(name), probe)
        figure.savefig(path)


def _return_curve(axis: Axes, name: str, seeds: Sequence[Curves], along: Along | None) -> int:
    """Draw the mean return over the seeds and their range; return the number of lines, 0 or 1."""
    runs = []
    curves = []
    for run in seeds:
        curve = _returns(run)
        if curve is not None and (along is None or along.column in run):
            runs.append(run)
            curves.append(curve)
    if not runs:
        return 0
    # The steps are those of the longest run. A run that ended earlier, as one that fell does, keeps its last value.
    longest = max(curves, key=lambda curve: curve.steps[-1])
    first = max(curve.steps[0] for curve in curves)
    steps = [step for step in longest.steps if step >= first]
    if not steps:
        return 0
    # On another axis than steps, a point stands at the mean over the seeds, as its return does.
    positions: Sequence[float] = steps
    if along is not None:
        positions = np.mean([_along(along, run, steps, is_evaluation=True) for run in runs], axis=0)
    values = np.array([values_at(curve, steps) for curve in curves])  # (seeds, steps)
    shade = colour(name)
    means = values.mean(axis=0)
    axis.plot(positions, means, color=shade, marker="o", markersize=3, linewidth=1.4, label=label(name))
    if len(curves) > 1:
        axis.fill_between(positions, values.min(axis=0), values.max(axis=0), color=shade, alpha=0.18, linewidth=0)
    return 1


def _returns(curves: Curves) -> Curve | None:
    """Return the curve of the first evaluation that was logged."""
    for name, curve in curves.items():
        if name.startswith("eval/") and name.endswith("/return_mean"):
            return curve
    return None


def _loss_panel(axis: Axes, name: str, curves: Curves) -> None:
    terms = sorted(filter(_is_term, curves))
    for number, column in enumerate(terms):
        shade, dashes = _style(number)
        name_of_term = column.rsplit("/", 1)[-1]
        _plot_smoothed(axis, curves[column], color=shade, linestyle=dashes, linewidth=1.2, label=name_of_term)
    total = "sum" if terms else "loss"
    for column, words, dashes in (("train/loss", total, "-"), ("val/loss", f"{total}, held-out episodes", ":")):
        if column in curves:
            _plot_smoothed(axis, curves[column], color="#222222", linewidth=1.6, linestyle=dashes, label=words)
            terms.append(column)
    # Values that differ by more than a factor of 30 get a logarithmic scale.
    if terms:
        values = np.concatenate([curves[column].values for column in terms])
        if values.min() > 0 and values.max() > 30 * values.min():
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
    _frame(axis, f"{label(name)}: training loss", "loss (mean per action token)", len(terms))


def _is_term(column: str) -> bool:
    """Whether a column is a term of a training loss: ``ilql/q_loss``, not ``val/ilql/q_loss`` or ``train/loss``."""
    return column.count("/") == 1 and column.endswith("_loss") and not column.startswith("val/")


def _plot_smoothed(axis: Axes, curve: Curve, color: str, **style: Any) -> None:
    """Draw a smoothed curve, and the curve as it was logged as its faint background."""
    smoothed = _smoothed(curve)
    if smoothed is not curve:
        axis.plot(*curve, color=color, **_AS_LOGGED)
    axis.plot(*smoothed, color=color, **style)


def _smoothed(curve: Curve, parts: int = 40) -> Curve:
    """Return a running mean over a fortieth of the curve. At its ends the window is smaller; nothing is padded."""
    half = len(curve.values) // (2 * parts)
    if half == 0:
        return curve
    # The sum over a window is the difference of two cumulative sums.
    sums = np.concatenate([[0.0], np.cumsum(curve.values)])
    indices = np.arange(len(curve.values))
    first = np.maximum(indices - half, 0)
    last = np.minimum(indices + half + 1, len(indices))
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
    # Thicker lines than those of the chart, without markers. Labels that begin with "_" are matplotlib's own.
    keys = []
    for line in axis.get_lines():
        name = str(line.get_label())
        if not name.startswith("_"):
            keys.append(
                Line2D([], [], color=line.get_color(), linestyle=line.get_linestyle(), linewidth=2.5, label=name)
            )
    axis.legend(
        handles=keys,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.22),
        ncol=min(4 if drawn <= 4 else 3, drawn),
        handlelength=1.0,
        columnspacing=1.2,
    )


def draw(
    results: Mapping[str, Mapping[str, Mapping[int, Record]]],
    curves: Mapping[str, Mapping[str, Mapping[int, Curves]]],
    scores: Mapping[str, Mapping[str, Score]],
    out: Path,
) -> list[Path]:
    """Draw all pictures for which there are data, and return their paths.

    Args:
        results: task to policy to training seed to record.
        curves: task to policy to training seed to learning curves.
        scores: task to policy to score, the dataset among the policies.
        out: folder for the pictures.
    """
    return [*_draw_scores(scores, out), *draw_curves(curves, out), *draw_probes(results, out)]


def draw_scores(scores: Mapping[str, Mapping[str, Score]], path: Path) -> bool:
    """Draw the normalised scores of all tasks that have a scale; return whether there is one.

    Args:
        scores: task to policy to score.
        path: where the picture goes.
    """
    panels = {}
    for task, policies in scores.items():
        published = registry.task(task).scores
        if published.any_scale:
            bars = []
            for name in ordered(policies):
                ours = policies[name]
                tuned = None if ours.tuned is None else ours.tuned.normalized
                printed = published.normalized.get(name)
                bars.append(Bar(name, ours.normalized, ours.over_episodes, printed, ours.over_seeds, tuned))
            panels[task] = bars
    if panels:
        plot_scores(panels, path)
    return bool(panels)


def _draw_scores(scores: Mapping[str, Mapping[str, Score]], out: Path) -> Iterator[Path]:
    if draw_scores(scores, out / "scores.png"):
        yield out / "scores.png"
    panels = {}
    for task, policies in scores.items():
        players = [name for name in ordered(policies) if policies[name].by_seed]  # all but the dataset
        above_bc = improvements(policies, players)
        if above_bc:
            panels[task] = above_bc
    if panels:
        plot_improvements(panels, out / "improvement.png")
        yield out / "improvement.png"
    plot_returns_beside_data(scores, out / "returns.png")
    yield out / "returns.png"
    plot_lengths(scores, out / "lengths.png")
    yield out / "lengths.png"


def draw_curves(curves: Mapping[str, Mapping[str, Mapping[int, Curves]]], out: Path) -> Iterator[Path]:
    """Draw returns over steps, minutes and episodes, the excess of BC, and the loss terms of each task.

    Args:
        curves: task to policy to training seed to learning curves.
        out: folder for the pictures.

    Yields:
        The path of each picture, when it is drawn.
    """
    trained: dict[str, dict[str, list[Curves]]] = {}
    for task, policies in curves.items():
        for name in ordered(policies):
            trained.setdefault(task, {})[name] = list(policies[name].values())
    if trained:
        plot_returns(trained, out / "learning_curves.png")
        yield out / "learning_curves.png"

    # Not all runs have logged minutes and episodes; tasks without such a run get no panel.
    for along, name in ((MINUTES, "minutes.png"), (EPISODES, "samples.png")):
        logged: dict[str, dict[str, list[Curves]]] = {}
        for task, runs in trained.items():
            for algorithm, seeds in runs.items():
                if any(along.column in run for run in seeds):
                    logged.setdefault(task, {})[algorithm] = seeds
        if logged:
            plot_returns(logged, out / name, along)
            yield out / name

    excess: dict[str, list[Curves]] = {}
    for task, runs in trained.items():
        for run in runs.get("bc", ()):
            if _EXCESS in run:
                excess.setdefault(task, []).append(run)
    if excess:
        plot_excess(excess, out / "excess.png")
        yield out / "excess.png"

    # The terms of a loss are drawn for one seed, so that the lines of a chart can be told from each other.
    for task, runs in trained.items():
        first_seeds = {algorithm: seeds[0] for algorithm, seeds in runs.items()}
        plot_losses(first_seeds, out / f"losses_{task}.png")
        yield out / f"losses_{task}.png"


def draw_probes(results: Mapping[str, Mapping[str, Mapping[int, Record]]], out: Path) -> Iterator[Path]:
    """Draw what the probe of each task found, for the first training seed of each policy.

    Args:
        results: task to policy to training seed to record.
        out: folder for the pictures.

    Yields:
        The path of each picture, when it is drawn.
    """
    for task, policies in results.items():
        probes = {}
        for name in ordered(policies):
            first = next(iter(policies[name].values()))
            if first.probe is not None:
                probes[name] = first.probe
        plot = registry.probe_plot(task)
        if probes and plot is not None:
            path = out / plot.file_name(task)
            plot_probes(plot, probes, path, task)
            yield path
