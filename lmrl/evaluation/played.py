"""What is counted of episodes, and what an evaluation leaves of them for those who do not read all."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmrl.errors import UserError, counted
from lmrl.types import Episode
from lmrl.utils.files import replacing

__all__ = ["EpisodeTable", "read_table", "transcript", "write_table"]

_COLUMNS = ("episode", "return", "length", "success", "illegal")


class EpisodeTable(NamedTuple):
    """What is counted of E episodes, (E,) each."""

    returns: NDArray[np.float64]
    """Undiscounted."""
    lengths: NDArray[np.int64]
    """In actions."""
    successes: NDArray[np.int64]
    """0 or 1."""
    illegal: NDArray[np.int64]
    """Actions that the rules did not know."""

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> "EpisodeTable":
        """The table of some episodes."""
        return cls(
            np.asarray([e.total_reward for e in episodes], dtype=np.float64),
            np.asarray([len(e) for e in episodes], dtype=np.int64),
            np.asarray([e.success for e in episodes], dtype=np.int64),
            np.asarray([e.illegal for e in episodes], dtype=np.int64),
        )

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
        found: dict[str, float] = {}
        for name, values in (("return", self.returns), ("length", self.lengths)):
            found[f"{name}_std"] = float(np.std(values))
            found |= {f"{name}_p{share}": float(np.percentile(values, share)) for share in (0, 10, 50, 90, 100)}
        return found


def write_table(table: EpisodeTable, path: Path) -> None:
    """Write a CSV file with a line for each episode; numbers are read back as they were."""
    with replacing(path) as file:
        lines = [",".join(_COLUMNS), *(",".join(map(str, row)) for row in _rows(table))]
        file.write(("\n".join(lines) + "\n").encode())


def _rows(table: EpisodeTable) -> list[tuple[float, ...]]:
    return list(zip(range(len(table.returns)), *(column.tolist() for column in table), strict=True))


def read_table(path: Path) -> EpisodeTable:
    """What `write_table` has written.

    Raises:
        UserError: naming the file, if it is not there or holds something else.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        if tuple(head) != _COLUMNS or not rows:
            raise ValueError(f"its columns must be {', '.join(_COLUMNS)}, with a line for each episode")
        returns, *counts = zip(*((float(row[1]), *map(int, row[2:])) for row in rows), strict=True)
        found = EpisodeTable(np.array(returns), *(np.array(column, dtype=np.int64) for column in counts))
        if not np.isfinite(found.returns).all() or any((column < 0).any() for column in found[1:]):
            raise ValueError("returns must be finite, and counts not negative")
    except FileNotFoundError as error:
        raise UserError(f"{path.parent} lacks {path.name}: play again with lmrl evaluate") from error
    except (ValueError, TypeError, IndexError, csv.Error) as error:
        raise UserError(f"{path}: is no table of episodes ({error})") from error
    return found


def transcript(episode: Episode, turns: int = 12) -> str:
    """An episode as a dialogue: ``>`` before what the player said, the reward in brackets; long ones are cut."""
    lines = _said("", episode.observations[0])
    for turn in range(min(turns, len(episode))):
        lines += _said("> ", episode.actions[turn], f"   [{_number(episode.rewards[turn])}]")
        lines += _said("", episode.observations[turn + 1])
    if len(episode) > turns:
        lines.append(f"... and {counted(len(episode) - turns, 'more turn')}")
    how = "solved" if episode.success else "ended by the rules" if episode.terminated else "cut short"
    length = counted(len(episode), "turn")
    lines.append(f"({how}; return {_number(episode.total_reward)}, {length}, {episode.illegal} illegal)")
    return "\n".join(lines)


def _said(mark: str, text: str, after: str = "") -> list[str]:
    """The lines of a text, marked, none longer than a screen is wide."""
    shown = text if len(text) <= 600 else f"{text[:600]} ... ({len(text)} characters)"
    lines = [f"{mark}{line}" for line in shown.splitlines() or [""]]
    return [*lines[:-1], lines[-1] + after]


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")
