"""The report: everything that was evaluated, beside the published numbers, as Markdown, HTML and pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmrl.atomic import replacing
from lmrl.envs import registration
from lmrl.errors import UserError
from lmrl.evaluation.intervals import Interval
from lmrl.evaluation.learning_plot import plot_curves
from lmrl.evaluation.maze_picture import draw_mazes
from lmrl.evaluation.naming import label, ordered
from lmrl.evaluation.plots import Bar, plot_scores
from lmrl.evaluation.rendering import render_html, render_markdown
from lmrl.evaluation.results import Result, read_results
from lmrl.evaluation.tables import task_words

__all__ = ["write_report"]

_OFFLINE = ("bc", "filtered_bc", "mc", "ilql")
_WORDS: dict[str, Any] = {
    "title": "LMRL-Gym, reproduced",
    "scores_caption": "Normalised scores with 95 % intervals; diamonds are the published ones.",
    "maze_caption": "V of each cell as colour and number, the greedy move as an arrow; wrong moves are dashed and "
    "framed, ★ is the goal. A move is right if it begins a shortest path.",
    "curves_caption": "Mean return in interactive evaluation during training, and the terms of each loss.",
    "notes": (
        "Normalised scores are 0 at the minimum, 50 at the average and 100 at the maximum, straight lines between; "
        "values outside of this range are not clipped.",
        "Intervals of returns and of differences are 95 % percentile bootstrap intervals over episodes (10,000 "
        "resamples), those of success rates are Wilson's. They say how sure the evaluation of this one training run "
        "is, not how much another training seed would change it.",
        "† marks printed scores that differ by more than half a point from what the paper's formula and constants "
        "make of its own raw score.",
        "Illegal is the share of actions that the rules did not know. Wall time is training and evaluation together.",
    ),
}


def write_report(
    runs: Path | str = "runs",
    out: Path | str = "report",
    tasks: Sequence[str] | None = None,
    algorithms: Sequence[str] | None = None,
) -> Path:
    """Write ``report.md``, ``report.html``, ``scores.png``, ``learning_curves.png`` and pictures of mazes.

    Args:
        runs: folder with ``<task>/<name>/evaluation/scores.json``.
        out: folder for the report; files of an earlier one are replaced.
        tasks: which tasks; all that have results if left out.
        algorithms: which ones to expect: the report says of each whether it is missing. BC, filtered BC, MC and
            ILQL if left out.

    Returns:
        The path of ``report.html``, which needs no other file.

    Raises:
        UserError: an unknown task, no results at all, or a broken result file.
    """
    runs, out = Path(runs), Path(out)
    chosen = [registration.task(task).name for task in tasks] if tasks is not None else list(registration.tasks())
    found = {task: results for task in chosen if (results := read_results(runs, task))}
    if not found:
        raise UserError(f"no results of {', '.join(chosen)} in {runs}; make some with: lmrl reproduce maze_fo")
    out.mkdir(parents=True, exist_ok=True)
    pictures = _pictures(found, out)
    expected = _OFFLINE if algorithms is None else tuple(algorithms)
    words = {
        **_WORDS,
        "made_with": _made_with(found),
        "tasks": [task_words(task, results, expected) for task, results in found.items()],
    }
    for name, text in (("md", render_markdown(words, pictures)), ("html", render_html(words, pictures))):
        with replacing(out / f"report.{name}") as file:
            file.write(text.encode())
    return out / "report.html"


def _pictures(found: Mapping[str, Mapping[str, Result]], out: Path) -> list[Path]:
    for stale in (*out.glob("maze_values_*.png"), out / "learning_curves.png"):
        stale.unlink(missing_ok=True)
    pictures = [out / "scores.png"]
    plot_scores({task: _bars(task, results) for task, results in found.items()}, pictures[0])
    trained = {
        task: {name: results[name].curves for name in ordered(results) if results[name].curves}
        for task, results in found.items()
    }
    if any(trained.values()):
        pictures.append(out / "learning_curves.png")
        plot_curves({task: runs for task, runs in trained.items() if runs}, pictures[-1])
    for task, results in found.items():
        probes = {name: probe for name in ordered(results) if (probe := results[name].probe) is not None}
        if probes:
            pictures.append(out / f"maze_values_{task}.png")
            draw_mazes(probes, pictures[-1], task)
    return pictures


def _bars(task: str, results: Mapping[str, Result]) -> list[Bar]:
    published = registration.task(task).scores.normalized
    return [
        Bar(
            name,
            results[name].scores["normalized"],
            Interval(*results[name].scores["normalized_ci"]),
            published.get(name),
        )
        for name in ordered(results)
    ]


def _made_with(found: Mapping[str, Mapping[str, Result]]) -> str:
    """One line on versions and seeds; where runs differ, all that occur are named."""
    results = [result for runs in found.values() for result in runs.values()]
    versions: dict[str, set[str]] = {}
    for result in results:
        for package, version in result.scores.get("provenance", {}).get("versions", {}).items():
            versions.setdefault(package, set()).add(str(version))
    made = [f"{package} {' and '.join(sorted(seen))}" for package, seen in versions.items()]
    seeds = sorted({int(result.scores["seed"]) for result in results})
    players = sum(len(runs) for runs in found.values())
    seed_words = f"seed {', '.join(map(str, seeds))}"
    return f"{players} players on {', '.join(map(label, found))}. " + ", ".join([*made, seed_words]) + "."
