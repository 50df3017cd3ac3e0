"""Results of a sweep: a table on the terminal and in files, a picture, and the best settings as a config file."""

import csv
import io
import math
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import matplotlib.style
import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.markup import escape
from rich.table import Table

from lmrl.errors import without_secrets
from lmrl.evaluation.result_json import write_json
from lmrl.integrations.optuna.space import Range, Space, Value, overlay
from lmrl.integrations.optuna.trials import Sweep, Trial, best_of
from lmrl.report.plots import STYLE
from lmrl.report.wording import UNKNOWN
from lmrl.utils.files import replacing

__all__ = ["best_table", "plot_sweep", "write_outcome"]

_SHOWN = 10
_DOT = "#0072B2"
_BEST = "#D55E00"
_COLUMNS = 3


def write_outcome(sweep: Sweep, trials: Sequence[Trial]) -> None:
    """Write ``table.csv``, ``table.json`` and, if a trial is done, ``best.yaml`` and ``sweep.png``."""
    records = []  # for table.json
    rows = []  # for table.csv
    for trial in trials:
        record: dict[str, object] = {"trial": trial.number, "state": trial.state, "settings": dict(trial.settings)}
        row: dict[str, object] = {"trial": trial.number, "state": trial.state, **trial.settings}
        if trial.scores:
            record |= trial.scores
            row["return"] = trial.scores["return_mean"]
            row["return_low"], row["return_high"] = trial.scores["return_ci"]
            row["normalized"] = trial.scores["normalized"]
            row["success_rate"] = trial.scores["success_rate"]
        if trial.error:
            record["error"] = trial.error
        records.append(record)
        rows.append(row)
    space = dict(zip(sweep.space, map(repr, sweep.space.values()), strict=True))
    training = shlex.join(["lmrl", *without_secrets(sweep.words)])  # command of all trials, without what differs
    write_json({"command": training, "space": space, "trials": records}, sweep.out / "table.json")
    text = io.StringIO(newline="")
    heads = ["trial", "state", "return", "return_low", "return_high", "normalized", "success_rate", *sweep.space]
    writer = csv.DictWriter(text, heads)
    writer.writeheader()
    writer.writerows(rows)
    with replacing(sweep.out / "table.csv") as file:
        file.write(text.getvalue().encode())
    best = best_of(trials)
    if best is not None:
        head = f"# Trial {best.number} of a sweep over {' '.join(sweep.configs)}, to be named after these:\n"
        with replacing(sweep.out / "best.yaml") as file:
            file.write((head + yaml.safe_dump(overlay(best.settings, sweep.words), sort_keys=False)).encode())
        plot_sweep(sweep.space, trials, sweep.out / "sweep.png")


def best_table(space: Space, trials: Sequence[Trial]) -> Table:
    """The ten best trials; options are named by their last word where that tells them apart."""
    done = sorted(_done(trials), key=_mean, reverse=True)
    failed = sum(trial.state == "failed" for trial in trials)
    table = Table(title=f"{len(done)} trials done, {failed} failed; the best:", title_justify="left", box=None)
    short = _short(list(space))
    for head in ("trial", *short.values(), "return [95 %]", "success"):
        table.add_column(escape(head), justify="right", overflow="fold")
    for trial in done[:_SHOWN]:
        low, high = trial.scores["return_ci"]
        cells = [str(trial.number)]
        for option in short:
            cells.append(_shown(trial.settings.get(option)))
        cells.append(f"{trial.scores['return_mean']:.3f} [{low:.3f}, {high:.3f}]")
        cells.append(f"{100 * trial.scores['success_rate']:.1f} %")
        table.add_row(*map(escape, cells))
    return table


def _done(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.scores]


def _short(options: Sequence[str]) -> dict[str, str]:
    """Return the last word of each option (``lr``), or the whole option where two end in the same word."""
    last_words = [option.rpartition(".")[2] for option in options]
    counts = Counter(last_words)
    short = {}
    for option, word in zip(options, last_words, strict=True):
        short[option] = word if counts[word] == 1 else option
    return short


def _shown(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None:
        return UNKNOWN
    return str(value).lower() if isinstance(value, bool) else str(value)  # true and false, as in the files


def plot_sweep(space: Space, trials: Sequence[Trial], path: Path) -> None:
    """Draw the return over the trials with the best so far, and a panel of returns over the values of each option."""
    done = _done(trials)
    best = best_of(done)
    short = _short(list(space))
    assert best is not None
    rows = 1 + math.ceil(len(space) / _COLUMNS)  # the first row shows the trials
    columns = min(_COLUMNS, len(space))
    with matplotlib.style.context(STYLE):
        figure = Figure(figsize=(max(6.4, 3.4 * columns), 2.7 * rows), layout="constrained")
        grid = figure.add_gridspec(rows, columns)
        _over_trials(figure.add_subplot(grid[0, :]), done, best)
        for place, (key, part) in enumerate(space.items()):
            axis = figure.add_subplot(grid[1 + place // columns, place % columns])
            _over_option(axis, key, part if isinstance(part, Range) else None, done, best)
            axis.set_title(short[key])
            if place % columns == 0:
                axis.set_ylabel("mean return")
        figure.savefig(path)


def _over_trials(axis: Axes, done: Sequence[Trial], best: Trial) -> None:
    numbers = [trial.number for trial in done]
    returns = np.array(list(map(_mean, done)))
    ends = np.array([trial.scores["return_ci"] for trial in done]).T  # (2, trials)
    reach = np.abs(ends - returns)  # matplotlib takes distances from the point
    axis.errorbar(numbers, returns, yerr=reach, fmt="o", ms=4, color=_DOT, elinewidth=0.8, alpha=0.8)
    axis.step(numbers, np.maximum.accumulate(returns), where="post", color="#888888", linewidth=1.0, zorder=0)
    axis.plot(best.number, _mean(best), "o", ms=7, color=_BEST, zorder=3)
    axis.set_xlabel("trial")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylabel("mean return, 95 %")
    axis.set_title("trials, and the best so far", fontweight="bold")


def _over_option(axis: Axes, key: str, part: Range | None, done: Sequence[Trial], best: Trial) -> None:
    values = [trial.settings[key] for trial in done]
    positions: list[float] = []
    if part is None:  # choices stand side by side, in the order in which they were first tried
        shown = list(map(_shown, values))
        names = list(dict.fromkeys(shown))
        positions += map(names.index, shown)
        axis.set_xticks(range(len(names)), names)
        axis.set_xlim(-0.5, len(names) - 0.5)
    else:
        positions += np.array(values, dtype=float).tolist()
        if part.log:
            axis.set_xscale("log")
            ticks = np.geomspace(part.low, part.high, 3)
            # The usual labels are powers of ten, which say little in a range of less than a decade.
            axis.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
            axis.set_xticks([], minor=True)
    axis.plot(positions, list(map(_mean, done)), "o", ms=4, color=_DOT, alpha=0.8)
    axis.plot(positions[done.index(best)], _mean(best), "o", ms=7, color=_BEST)
    axis.grid(axis="y", color="#EEEEEE", linewidth=0.8)


def _mean(trial: Trial) -> float:
    return float(trial.scores["return_mean"])
