"""A table with a row per episode, and its CSV file. It loads no torch: commands without a model need it, too."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.types import Episode
from lmrl.utils.files import replacing

__all__ = ["EpisodeTable", "read_table", "write_table"]

_COLUMNS = ("episode", "return", "length", "success", "illegal")


class EpisodeTable(NamedTuple):
    """Returns, lengths, successes and illegal actions of E episodes, (E,) each."""

    returns: NDArray[np.float64]
    """Undiscounted."""
    lengths: NDArray[np.int64]
    """In actions."""
    successes: NDArray[np.int64]
    """0 or 1."""
    illegal: NDArray[np.int64]
    """Number of actions that the rules did not accept."""

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> "EpisodeTable":
        """Return the table of some episodes."""
        returns = np.array([episode.total_reward for episode in episodes], np.float64)
        counts = [(len(episode), episode.success, episode.illegal) for episode in episodes]
        # `reshape` is for a table of no episodes. The copy makes each column contiguous.
        columns = np.array(counts, np.int64).reshape(-1, 3).T.copy()
        return cls(returns, *columns)

    def means(self) -> dict[str, float]:
        """``return_mean``, ``success_rate`` and ``length_mean`` over episodes, ``illegal_rate`` over all actions."""
        return {
            "return_mean": float(np.mean(self.returns)),
            "success_rate": int(self.successes.sum()) / len(self.successes),
            "length_mean": int(self.lengths.sum()) / len(self.lengths),
            "illegal_rate": int(self.illegal.sum()) / max(1, int(self.lengths.sum())),
        }

    def spread(self) -> dict[str, float]:
        """Standard deviation and percentiles over episodes: ``return_std``, ``return_p10``, ``length_p90``..."""
        numbers: dict[str, float] = {}
        for name, values in (("return", self.returns), ("length", self.lengths)):
            numbers[f"{name}_std"] = float(np.std(values))
            for percent in (0, 10, 50, 90, 100):
                numbers[f"{name}_p{percent}"] = float(np.percentile(values, percent))
        return numbers


def write_table(table: EpisodeTable, path: Path) -> None:
    """Write a CSV file with a line for each episode. Numbers are written so that they are read back exactly."""
    lines = [",".join(_COLUMNS)]
    # `tolist` gives numbers of Python, whose text has as many digits as it takes.
    columns = [column.tolist() for column in table]
    for index, row in enumerate(zip(*columns, strict=True)):
        lines.append(",".join(map(str, (index, *row))))
    with replacing(path) as file:
        file.write(("\n".join(lines) + "\n").encode())


def read_table(path: Path) -> EpisodeTable:
    """Read what `write_table` has written.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        if tuple(head) != _COLUMNS or not rows:
            raise ValueError(f"its columns must be {', '.join(_COLUMNS)}, with a line for each episode")
        _, returns, *counts = zip(*rows, strict=True)  # the first column numbers the episodes
        columns = [np.array(list(map(int, column)), np.int64) for column in counts]
        table = EpisodeTable(np.array(list(map(float, returns))), *columns)
        if not np.isfinite(table.returns).all() or min(column.min() for column in table[1:]) < 0:
            raise ValueError("returns must be finite, and counts not negative")
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} lacks {path.name}: play again with lmrl evaluate") from error
    except (ValueError, TypeError, OverflowError, csv.Error) as error:
        raise UserError(f"{path}: is no table of episodes ({error})") from error
    return table
