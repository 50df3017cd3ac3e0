"""The table that a reproduction ends with on the terminal."""

from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from lmrl.envs import registration
from lmrl.evaluation.naming import label, ordered
from lmrl.evaluation.seeds import read_seeds
from lmrl.evaluation.wording import number, with_interval

__all__ = ["summary"]


def summary(runs: Path, tasks: Sequence[str]) -> Table:
    """Scores of everything evaluated under ``runs``, beside the published ones; a line per training seed.

    It fits into 80 columns: the task stands above its players, and the intervals of returns are in the report.
    """
    table = Table(
        title="normalised scores: 0, 50, 100: published minimum, average, maximum",
        title_justify="left",
        box=None,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("player", overflow="fold")
    for head in ("seed", "normalised [95 %]", "paper", "return", "paper", "success"):
        table.add_column(escape(head), justify="right", no_wrap=True)
    for task in tasks:
        published, results = registration.task(task).scores, read_seeds(runs, task)
        if results:
            table.add_row(f"[bold]{task}[/bold]")
        for name in ordered(results):
            for seed, result in results[name].items():
                scores = result.scores
                table.add_row(
                    escape(label(name)),
                    str(seed),
                    escape(with_interval(scores["normalized"], scores["normalized_ci"])),
                    number(published.normalized.get(name)),
                    number(scores["return_mean"], 2),
                    number(published.raw.get(name), 2),
                    f"{100 * scores['success_rate']:.1f} %",
                )
    return table
