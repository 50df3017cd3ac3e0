"""The replay buffer: segments of many episodes as flat vectors, on disk beyond a size, saved with the checkpoint."""

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor

from lmrl.errors import UserError
from lmrl.tokens.segments import Segment, as_key

__all__ = ["Column", "Outcome", "ReplayBuffer"]

_INITIAL_ENTRIES = 1024  # room of a column when it first grows


class Column:
    """A vector that grows. Up to ``limit`` bytes it lies in memory, beyond that in a file mapped into memory.

    Args:
        dtype: dtype of the entries.
        file: used beyond the limit, overwritten if it exists; None stays in memory.
        limit: bytes.
    """

    def __init__(self, dtype: DTypeLike, file: Path | None = None, limit: int = 2**28) -> None:
        self._dtype = np.dtype(dtype)
        self._file = file
        self._limit = limit
        self._room: NDArray[Any] = np.empty(0, self._dtype)
        self._used = 0

    def __len__(self) -> int:
        """Number of entries."""
        return self._used

    @property
    def on_disk(self) -> bool:
        """Whether it lies in the file."""
        return isinstance(self._room, np.memmap)

    def extend(self, values: ArrayLike) -> None:
        """Append."""
        added = np.asarray(values, self._dtype)
        end = self._used + len(added)
        if end > len(self._room):
            self._grow(max(end, 2 * len(self._room), _INITIAL_ENTRIES))
        self._room[self._used : end] = added
        self._used = end

    def values(self, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Entries ``start`` to ``stop``, not to be changed; of what lies in the file only these are read."""
        return np.asarray(self._room[start : self._used if stop is None else stop])

    def clear(self) -> None:
        """Forget all entries; the room stays."""
        self._used = 0

    def _grow(self, size: int) -> None:
        if self._file is None or size * self._dtype.itemsize <= self._limit:
            room = np.empty(size, self._dtype)
            room[: self._used] = self._room[: self._used]
            self._room = room
            return
        kept = None if self.on_disk else self._room[: self._used]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._room = np.empty(0, self._dtype)  # closes the old map
        with self._file.open("w+b" if kept is not None else "r+b") as file:
            file.truncate(size * self._dtype.itemsize)
            _allocate(file.fileno(), size * self._dtype.itemsize)
        self._room = np.memmap(self._file, self._dtype, "r+", shape=(size,))
        if kept is not None:
            self._room[: self._used] = kept


def _allocate(descriptor: int, size: int) -> None:
    """Allocate a file on the disk: if that is full, an error now, instead of a crash when the file is written to."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # file systems that cannot do it
            raise


# What follows a segment: nothing, the next segment, or a context of its own.
_ENDS = 0
_CONTINUES = 1
_IS_CUT = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode went, for filters."""

    total_reward: float
    success: bool
    group: int = -1
    """Episodes of a round with this number began alike (`lmrl.callbacks.RolloutCollection`); -1: it has no group."""


class ReplayBuffer:
    """Episodes as segments, in the order in which they came. A segment comes back as it was put in.

    A context that the next segment begins with is stored once. In memory a million tokens take 4 MB, a million action
    tokens 8 MB more, and 4 MB more for each number that an algorithm attached to them.

    Args:
        folder: where vectors go that outgrow their share of memory; None keeps all in memory.
        limit: bytes of each of the vectors in memory.
    """

    def __init__(self, folder: Path | None = None, limit: int = 2**28) -> None:
        types = {
            "ids": np.int32,  # ids of all segments, one after the other
            "ids_end": np.int64,  # per segment, where its ids end
            "col": np.int32,  # per action token
            "reward": np.float64,
            "turn_end": np.bool_,
            "new_col": np.int32,  # per segment
            "col_end": np.int64,  # per segment, where its action tokens end
            "follows": np.int8,  # per segment
            "next_ids": np.int32,  # next ids of the segments that are cut
            "next_end": np.int64,  # per segment
            "last": np.int64,  # per episode, where its segments end
            "total_reward": np.float64,
            "success": np.int8,
            "group": np.int32,
        }
        self._folder = folder
        self._limit = limit
        self._columns: dict[str, Column] = {}
        for name, dtype in types.items():
            self._columns[name] = self._column(name, dtype)
        self._attached: dict[str, Column] = {}  # per action token, under the names that the algorithm gave

    def __len__(self) -> int:
        """Number of segments."""
        return len(self._columns["ids_end"])

    def append(self, episode_segments: Sequence[Segment], outcome: Outcome) -> None:
        """Add the segments of one episode."""
        columns = self._columns
        last = len(episode_segments) - 1
        for number, segment in enumerate(episode_segments):
            columns["ids"].extend(segment.ids)
            columns["col"].extend(segment.col)
            columns["reward"].extend(segment.reward)
            columns["turn_end"].extend(segment.turn_end)
            columns["new_col"].extend([segment.new_col])
            if segment.next_ids is None:
                columns["follows"].extend([_ENDS])
            elif number < last:  # the context that follows is the beginning of the next segment
                columns["follows"].extend([_CONTINUES])
            else:
                columns["follows"].extend([_IS_CUT])
                columns["next_ids"].extend(segment.next_ids)
            for name, values in segment.columns.items():
                self._attached_column(name).extend(values)
            # Where the entries of this segment end; they begin where those of the segment before end.
            columns["ids_end"].extend([len(columns["ids"])])
            columns["col_end"].extend([len(columns["col"])])
            columns["next_end"].extend([len(columns["next_ids"])])
        columns["last"].extend([len(self)])
        columns["total_reward"].extend([outcome.total_reward])
        columns["success"].extend([outcome.success])
        columns["group"].extend([outcome.group])

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of all episodes."""
        totals = self._columns["total_reward"].values().tolist()
        successes = self._columns["success"].values().astype(bool).tolist()
        groups = self._columns["group"].values().tolist()
        return list(map(Outcome, totals, successes, groups))

    def spans(self) -> list[range]:
        """The segments of each episode."""
        ends = self._columns["last"].values().tolist()
        return [range(start, end) for start, end in pairwise([0, *ends])]

    def token_counts(self, spans: Sequence[range]) -> tuple[int, int]:
        """Numbers of action tokens and of observation tokens in all segments of some spans."""
        starts = np.array([span.start for span in spans], dtype=np.int64)
        stops = np.array([span.stop for span in spans], dtype=np.int64)
        # Per segment, as `Segment.n_observation_tokens` counts them.
        ids = np.diff(self._columns["ids_end"].values(), prepend=0)
        actions = np.diff(self._columns["col_end"].values(), prepend=0)
        observed = ids - 1 - np.maximum(self._columns["new_col"].values() - 1, 0) - actions
        # Differences of running sums are the sums within each span.
        actions_before = np.concatenate([[0], self._columns["col_end"].values()])
        observed_before = np.concatenate([[0], np.cumsum(observed)])
        n_actions = (actions_before[stops] - actions_before[starts]).sum()
        n_observation_tokens = (observed_before[stops] - observed_before[starts]).sum()
        return int(n_actions), int(n_observation_tokens)

    def __getitem__(self, index: int) -> Segment:
        """One segment."""
        ids = self._part("ids", "ids_end", index)
        start, stop = self._bounds("col_end", index)  # bounds of its action tokens
        col = self._columns["col"].values(start, stop)
        follows = int(self._columns["follows"].values(index, index + 1)[0])
        following = None
        if follows == _IS_CUT:
            following = self._part("next_ids", "next_end", index)
        elif follows == _CONTINUES:
            # The next segment up to its first action token, whose column comes right after those of this segment.
            next_col = int(self._columns["col"].values(stop, stop + 1)[0])
            following = self._part("ids", "ids_end", index + 1)[: next_col + 1]
        attached = {}
        for name, column in self._attached.items():
            if len(column):  # cleared ones stay, with their room
                attached[name] = column.values(start, stop)
        return Segment(
            ids=ids,
            col=col,
            token=ids[col + 1],
            reward=self._columns["reward"].values(start, stop),
            turn_end=self._columns["turn_end"].values(start, stop),
            next_ids=following,
            key=as_key(ids),
            next_key=b"" if following is None else as_key(following),
            new_col=int(self._columns["new_col"].values(index, index + 1)[0]),
            columns=attached,
        )

    def clear(self) -> None:
        """Forget everything."""
        for column in (*self._columns.values(), *self._attached.values()):
            column.clear()

    def state_dict(self) -> dict[str, Any]:
        """Everything as tensors."""
        return {"columns": _tensors(self._columns), "attached": _tensors(self._attached)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned.

        Raises:
            UserError: it lacks columns, as those of earlier versions do.
        """
        saved: Mapping[str, Tensor] = state["columns"]
        missing = sorted(self._columns.keys() - saved.keys())
        if missing:
            raise UserError(
                f"the replay buffer in the checkpoint is of an earlier version and lacks {', '.join(missing)}; restart "
                "the run with --overwrite, or resume it with the version that wrote it"
            )
        self.clear()
        for name, column in self._columns.items():
            column.extend(saved[name].numpy())
        for name, values in state["attached"].items():
            self._attached_column(name).extend(values.numpy())

    def _column(self, name: str, dtype: DTypeLike) -> Column:
        file = None if self._folder is None else self._folder / f"{name}.bin"
        return Column(dtype, file, self._limit)

    def _attached_column(self, name: str) -> Column:
        if name not in self._attached:
            self._attached[name] = self._column(f"rollout_{name}", np.float32)
        return self._attached[name]

    def _bounds(self, end: str, index: int) -> tuple[int, int]:
        ends = self._columns[end].values()
        return (0 if index == 0 else int(ends[index - 1])), int(ends[index])

    def _part(self, column: str, end: str, index: int) -> NDArray[Any]:
        return self._columns[column].values(*self._bounds(end, index))


def _tensors(columns: Mapping[str, Column]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(column.values().copy()) for name, column in columns.items()}
