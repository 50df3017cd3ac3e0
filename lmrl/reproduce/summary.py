"""The table that a reproduction ends with on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from lmrl.envs import registration
from lmrl.evaluation.naming import label, ordered
from lmrl.evaluation.seeds import read_seeds
from lmrl.evaluation.wording import number, with_interval

__all__ = ["summary"]


def summary(runs: Path, tasks: Sequence[str]) -> Table:
    """Scores of everything evaluated under ``runs``, beside the published ones; a line per training seed."""
    table = Table(title="normalised scores: 0, 50, 100: published minimum, average, maximum", title_justify="left")
    for head in ("task", "player"):
        table.add_column(head)
    for head in ("seed", "normalised [95 %]", "published", "return [95 %]", "published", "success"):
        table.add_column(head.replace("[", r"\["), justify="right")
    for task in tasks:
        published, results = registration.task(task).scores, read_seeds(runs, task)
        for name in ordered(results):
            for seed, result in results[name].items():
                scores = result.scores
                table.add_row(
                    task,
                    label(name).replace("[", r"\["),
                    str(seed),
                    with_interval(scores["normalized"], scores["normalized_ci"]).replace("[", r"\["),
                    number(published.normalized.get(name)),
                    with_interval(scores["return_mean"], scores["return_ci"], 2).replace("[", r"\["),
                    number(published.raw.get(name), 2),
                    f"{100 * scores['success_rate']:.1f} %",
                )
        table.add_section()
    return table
