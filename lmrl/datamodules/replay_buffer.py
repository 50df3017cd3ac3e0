"""The replay buffer: segments of many episodes as flat vectors, on disk beyond a size, saved with the checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, DTypeLike, NDArray
from torch import Tensor

from lmrl.errors import UserError
from lmrl.tokens.segments import Segment, as_key

__all__ = ["Column", "Outcome", "ReplayBuffer"]

_LEAST = 1024  # entries that are made room for at the beginning


class Column:
    """Append and slice. Up to ``limit`` bytes it lies in memory, beyond that in a file mapped into memory.

    Args:
        dtype: of the entries.
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
            self._grow(max(end, 2 * len(self._room), _LEAST))
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
        with self._file.open("wb" if kept is not None else "r+b") as file:
            file.truncate(size * self._dtype.itemsize)
        self._room = np.memmap(self._file, self._dtype, "r+", shape=(size,))
        if kept is not None:
            self._room[: self._used] = kept


# what follows a segment: nothing, the next segment, a context of its own
_ENDS = 0
_GOES_ON = 1
_IS_CUT = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode went, for filters."""

    total_reward: float
    success: bool
    group: int = -1
    """Episodes of a round with this number began alike (`lmrl.callbacks.RolloutCollection`); -1: it has no such kin."""


class ReplayBuffer:
    """Episodes as segments, in the order in which they came. A segment comes back as it was put in.

    A context that the next segment begins with is stored once. In memory a million tokens that are read take 4 MB,
    a million that are said 8 MB more, and 4 MB more for each number that an algorithm attached to them.

    Args:
        folder: where vectors go that outgrow their share of memory; None keeps all in memory.
        limit: bytes of each of the vectors in memory.
    """

    def __init__(self, folder: Path | None = None, limit: int = 2**28) -> None:
        types = {
            "ids": np.int32,  # of all segments, one after the other
            "ids_end": np.int64,  # per segment, where its ids end
            "col": np.int32,  # per action token
            "reward": np.float64,
            "turn_end": np.bool_,
            "new_col": np.int32,  # per segment
            "col_end": np.int64,  # per segment, where its action tokens end
            "follows": np.int8,  # per segment
            "next_ids": np.int32,  # of the segments that are cut
            "next_end": np.int64,  # per segment
            "last": np.int64,  # per episode, where its segments end
            "total_reward": np.float64,
            "success": np.int8,
            "group": np.int32,
        }
        self._folder = folder
        self._limit = limit
        self._columns = {name: self._column(name, dtype) for name, dtype in types.items()}
        self._attached: dict[str, Column] = {}  # per action token, under the names that the algorithm gave

    def __len__(self) -> int:
        """Number of segments."""
        return len(self._columns["ids_end"])

    def append(self, parts: Sequence[Segment], outcome: Outcome) -> None:
        """Add the segments of one episode."""
        last = len(parts) - 1
        add = {name: column.extend for name, column in self._columns.items()}
        for number, part in enumerate(parts):
            add["ids"](part.ids)
            add["col"](part.col)
            add["reward"](part.reward)
            add["turn_end"](part.turn_end)
            add["new_col"]([part.new_col])
            follows = _ENDS if part.next_ids is None else _IS_CUT if number == last else _GOES_ON
            if follows == _IS_CUT:
                add["next_ids"](part.next_ids)  # type: ignore[arg-type]
            add["follows"]([follows])
            for name, values in part.columns.items():
                self._attached_column(name).extend(values)
            for end, column in (("ids_end", "ids"), ("col_end", "col"), ("next_end", "next_ids")):
                add[end]([len(self._columns[column])])
        add["last"]([len(self)])
        add["total_reward"]([outcome.total_reward])
        add["success"]([outcome.success])
        add["group"]([outcome.group])

    def outcomes(self) -> list[Outcome]:
        """Return the outcomes of all episodes."""
        columns = (self._columns[name].values().tolist() for name in ("total_reward", "success", "group"))
        return [Outcome(total, bool(success), group) for total, success, group in zip(*columns, strict=True)]

    def spans(self) -> list[range]:
        """The segments of each episode."""
        last = self._columns["last"].values().tolist()
        return [range(first, end) for first, end in zip([0, *last], last, strict=False)]

    def token_counts(self, spans: Sequence[range]) -> tuple[int, int]:
        """Numbers of action tokens and of observation tokens in all segments of some spans."""
        bounds = np.asarray([(span.start, span.stop) for span in spans], dtype=np.int64).reshape(-1, 2).T
        ids, actions = (np.diff(self._columns[name].values(), prepend=0) for name in ("ids_end", "col_end"))
        # As `Segment.n_observation_tokens`.
        observed = ids - 1 - np.maximum(self._columns["new_col"].values() - 1, 0) - actions
        totals = (np.concatenate([[0], np.cumsum(counts)])[bounds] for counts in (actions, observed))
        n_actions, n_observation_tokens = (int((ends - starts).sum()) for starts, ends in totals)
        return n_actions, n_observation_tokens

    def __getitem__(self, index: int) -> Segment:
        """One segment."""
        ids = self._part("ids", "ids_end", index)
        said = self._bounds("col_end", index)
        col = self._columns["col"].values(*said)
        follows = int(self._columns["follows"].values(index, index + 1)[0])
        following = None
        if follows == _IS_CUT:
            following = self._part("next_ids", "next_end", index)
        elif follows == _GOES_ON:
            following = self._part("ids", "ids_end", index + 1)
            following = following[: int(self._columns["col"].values(said[1], said[1] + 1)[0]) + 1]
        return Segment(
            ids=ids,
            col=col,
            token=ids[col + 1],
            reward=self._columns["reward"].values(*said),
            turn_end=self._columns["turn_end"].values(*said),
            next_ids=following,
            key=as_key(ids),
            next_key=b"" if following is None else as_key(following),
            new_col=int(self._columns["new_col"].values(index, index + 1)[0]),
            columns={name: column.values(*said) for name, column in self._attached.items() if len(column)},
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
                f"the replay buffer in the checkpoint is of an earlier version and lacks {', '.join(missing)}; begin "
                "the run anew with --overwrite, or go on with the version that wrote it"
            )
        self.clear()
        for name, column in self._columns.items():
            column.extend(saved[name].numpy())
        for name, values in state["attached"].items():
            self._attached_column(name).extend(values.numpy())

    def _column(self, name: str, dtype: DTypeLike) -> Column:
        return Column(dtype, None if self._folder is None else self._folder / f"{name}.bin", self._limit)

    def _attached_column(self, name: str) -> Column:
        if name not in self._attached:
            self._attached[name] = self._column(f"rollout_{name}", np.float32)
        return self._attached[name]

    def _bounds(self, end: str, index: int) -> tuple[int, int]:
        start, stop = (0, *self._columns[end].values(max(0, index - 1), index + 1).tolist())[-2:]
        return start, stop

    def _part(self, column: str, end: str, index: int) -> NDArray[Any]:
        return self._columns[column].values(*self._bounds(end, index))


def _tensors(columns: Mapping[str, Column]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(column.values().copy()) for name, column in columns.items()}
