"""A growing vector that moves to a file when it becomes too large for memory."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

__all__ = ["Column"]

_LEAST = 1024  # entries that are made room for at the beginning


class Column:
    """Append and slice. Up to ``limit`` bytes it lies in memory, beyond that in a file mapped into memory.

    Args:
        dtype: of the entries.
        file: used beyond the limit, overwritten if it exists; None stays in memory.
        limit: bytes.
    """

    def __init__(self, dtype: DTypeLike, file: Path | None = None, limit: int = 2**28) -> None:
        self._dtype, self._file, self._limit = np.dtype(dtype), file, limit
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
