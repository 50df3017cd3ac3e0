"""``lmrl plot``: the curves of several runs in one picture."""

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

from lmrl.errors import UserError, unknown
from lmrl.evaluation.curves import find_metrics, read_curves
from lmrl.report.pictures import EPISODES, MINUTES, plot_runs

__all__ = ["plot_command"]

_AXES = {"steps": None, "episodes": EPISODES, "minutes": MINUTES}
_FORMATS = (".png", ".svg", ".pdf")


def plot_command(
    runs: list[str], *, curves: list[str] | None = None, along: str = "steps", out: str = "curves.png"
) -> None:
    """Draw what runs have logged: a panel for each key, a line for each run.

    Long curves are running means, with the logged values as a faint background. Evaluations are not smoothed.

    Args:
        runs: run folders, or metrics.csv files.
        curves: logged keys, e.g. eval/maze_fo/return_mean ilql/q_loss; default: returns in evaluation and in rounds,
            and the loss of training.
        along: the horizontal axis: steps, episodes (that were played) or minutes (of training).
        out: the picture: PNG, SVG or PDF.
    """
    if along not in _AXES:
        raise unknown("--along", along, _AXES)
    path = Path(out)
    if path.suffix not in _FORMATS:
        raise UserError(f"--out must end in {', '.join(_FORMATS)}, got {out}")
    by_run = {name: read_curves(file) for name, file in _files(runs).items()}
    logged = sorted({key for its in by_run.values() for key in its})
    chosen = curves or _usual(logged)
    for key in chosen:
        if key not in logged:
            close = get_close_matches(key, logged, 3, 0.4) or logged[:5]
            raise UserError(f"no run has logged {key}; the nearest keys are {', '.join(close)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    plot_runs(by_run, chosen, path, _AXES[along])
    print(f"written: {path} ({', '.join(chosen)})")


def _files(runs: Sequence[str]) -> Mapping[str, Path]:
    """Return the file of each run, by as much of its path as tells it from the others."""
    files = {}
    for run in runs:
        path = Path(run)
        file = path if path.is_file() else find_metrics(path)
        if file is None:
            raise UserError(f"{run} holds no metrics.csv: it is no run, or has logged nothing yet")
        files[path.resolve()] = file
    if len(files) == 1:
        (alone,) = files
        return {alone.name: files[alone]}
    shared = os.path.commonpath(files)
    return {path.relative_to(shared).as_posix(): file for path, file in files.items()}


def _usual(logged: Sequence[str]) -> list[str]:
    """Return the keys that say most about a run, of those that were logged."""
    usual = []
    for key in logged:
        is_return = key.startswith("eval/") and key.endswith("/return_mean")
        if is_return or key in ("rollout/return_mean", "train/loss", "val/loss"):
            usual.append(key)
    if not usual:
        raise UserError(f"the runs have logged neither returns nor losses: name --curves, e.g. {', '.join(logged[:5])}")
    return usual
