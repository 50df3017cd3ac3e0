"""What is in a dataset, beside what was published about it."""

import math
import os
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from lmrl.data.reading import read_dataset
from lmrl.envs.registration import task
from lmrl.envs.scores import PublishedData

__all__ = ["DatasetStats", "dataset_stats", "stats_table"]

_TOP = 10


@dataclass(frozen=True)
class DatasetStats:
    """Statistics of a dataset; spreads are those of the population."""

    task: str
    episodes: int
    length_mean: float
    length_std: float
    success: float
    """Share of the episodes that solve the task."""
    return_mean: float
    return_std: float
    terminated: float
    """Share of the episodes that the rules ended; the others were cut short."""
    illegal_rate: float
    """Share of the actions that the rules did not know."""
    actions: dict[str, float]
    """The ten most frequent actions and their shares."""
    published: PublishedData | None
    """None where nothing was published."""

    def compared(self) -> dict[str, tuple[float, float | None, float | None]]:
        """By column of the paper's Table 1: ours, the published one, and ours / published - 1.

        The published one is None where there is none, and the last also where the published one is 0.
        """
        ours = {"size": self.episodes, **{name: getattr(self, name) for name in _COLUMNS}}
        compared = {}
        for name, value in ours.items():
            other = None if self.published is None else getattr(self.published, name)
            compared[name] = (value, other, value / other - 1 if other else None)
        return compared

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-like values, with ``relative_difference`` to the published figures."""
        difference = {name: row[2] for name, row in self.compared().items()}
        return {**asdict(self), "relative_difference": difference}


_COLUMNS = ("length_mean", "length_std", "success", "return_mean", "return_std")


class _Moments:
    """Mean and spread of a stream (Welford)."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        self.count += 1
        before = value - self.mean
        self.mean += before / self.count
        self._squares += before * (value - self.mean)

    @property
    def std(self) -> float:
        return math.sqrt(self._squares / self.count)


def dataset_stats(path: str | os.PathLike[str], task_name: str | None = None) -> DatasetStats:
    """Read a dataset once, whatever its size, and describe it.

    Raises:
        UserError: see `read_dataset`.
    """
    lengths, returns = _Moments(), _Moments()
    ends: Counter[str] = Counter()
    actions: Counter[str] = Counter()
    name, illegal = "", 0
    for episode in read_dataset(path, task_name):
        name = episode.task
        lengths.add(len(episode))
        returns.add(episode.total_reward)
        ends.update(success=episode.success, terminated=episode.terminated)
        illegal += episode.illegal
        actions.update(episode.actions)
    said = max(1, actions.total())
    return DatasetStats(
        task=name,
        episodes=lengths.count,
        length_mean=lengths.mean,
        length_std=lengths.std,
        success=ends["success"] / lengths.count,
        return_mean=returns.mean,
        return_std=returns.std,
        terminated=ends["terminated"] / lengths.count,
        illegal_rate=illegal / said,
        actions={action: count / said for action, count in actions.most_common(_TOP)},
        published=task(name).scores.data,
    )


def stats_table(stats: DatasetStats) -> Table:
    """The figures beside the published ones, for a terminal."""
    table = Table("", "here", "published", "difference", title=f"{stats.task}: {stats.episodes} episodes")
    for name, (ours, published, difference) in stats.compared().items():
        shown = "" if published is None else f"{published:.4g}"
        table.add_row(name.replace("_", " "), f"{ours:.4g}", shown, "" if difference is None else f"{difference:+.1%}")
    table.add_section()
    table.add_row("terminated", f"{stats.terminated:.4g}")
    table.add_row("illegal actions", f"{stats.illegal_rate:.4g}")
    for action, share in stats.actions.items():
        table.add_row(repr(action)[:40], f"{share:.4g}")
    return table
