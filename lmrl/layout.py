"""Which row and columns of a batch hold which ids: contexts with their branches, several to a row if lengths differ.

Rows are filled up with short contexts, so that little of the batch is padding. Contexts in one row do not see each
other, and each begins at position 0.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrl.tokens import Segment

__all__ = ["WORD", "Ints", "Layout", "pack"]

Ints: TypeAlias = NDArray[np.int64]

WORD = 4
"""Bytes of an id in a segment's key."""
_WASTE = 0.09  # share of padding that is not worth another layout


def pack(lengths: Sequence[int]) -> tuple[list[tuple[int, int]], int]:
    """Lay pieces into as many rows as leave little padding: the longest first, each into the emptiest row.

    More rows mean shorter ones, and attention over short rows is cheap; so the most rows that will do are taken. Rows
    never get wider than twice the longest piece, and where that leaves more padding, it is what there is.

    Returns:
        The row and the first column of each piece, and the width of the rows.
    """
    total, longest = sum(lengths), max(lengths, default=1)
    best, rows, width = [(row, 0) for row in range(len(lengths))], len(lengths), longest
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    filling = 1.0 - _WASTE
    fewer = int(total / (filling * longest))  # more rows than that cannot be full enough
    while total < filling * rows * width and fewer >= 1:
        places, filled = _balanced(lengths, order, fewer)
        if filled > 2 * longest:
            break
        if fewer * filled < rows * width:
            best, rows, width = places, fewer, filled
        fewer -= max(1, fewer // 32)
    return best, width


def _balanced(lengths: Sequence[int], order: Sequence[int], rows: int) -> tuple[list[tuple[int, int]], int]:
    filled = [(0, row) for row in range(rows)]
    heapify(filled)
    places = [(0, 0)] * len(lengths)
    for piece in order:
        used, row = filled[0]
        places[piece] = (row, used)
        heapreplace(filled, (used + lengths[piece], row))
    return places, max(filled)[0]


class Layout:
    """Where every key of some segments is read.

    Args:
        batch: any segments.
        bootstrap: also read the contexts that follow them.
    """

    def __init__(self, batch: Sequence[Segment], bootstrap: bool) -> None:
        heads = {s.key: _shared(s) for s in batch}
        leaf = _leaves(heads.keys() | {s.next_key for s in batch if s.next_key and bootstrap})
        self._branches: dict[bytes, dict[bytes, int]] = {}
        shifts: dict[bytes, tuple[bytes, int]] = {}
        for key in dict.fromkeys(leaf.values()):
            context = heads.get(key, key)
            branches = self._branches.setdefault(context, {})
            shift = sum(len(other) - len(context) for other in branches)
            branches[key] = len(context) + shift
            shifts[key] = (context, shift // WORD)
        places, self.width = pack([_length(*item) // WORD for item in self._branches.items()])
        self.rows = max((row for row, _ in places), default=-1) + 1
        self._place = dict(zip(self._branches, places, strict=True))
        self._found = {key: self._columns(*shifts[longest]) for key, longest in leaf.items()}

    def ids(self, pad: int) -> Ints:
        """(R, L) the rows."""
        ids = np.full((self.rows, self.width), pad, dtype=np.int64)
        for context, branches in self._branches.items():
            row, start = self._place[context]
            joined = np.frombuffer(context + b"".join(key[len(context) :] for key in branches), dtype=">u4")
            ids[row, start : start + len(joined)] = joined
        return ids

    def attention(self) -> tuple[Tensor | None, Tensor | None]:
        """(R, L) positions and (R, 1, L, L) mask, unless both are what they always are."""
        if len(self._place) == self.rows and all(len(branches) == 1 for branches in self._branches.values()):
            return None, None
        # Zero at padding too: a row may be wider than the model has positions.
        positions, piece, branch = np.zeros((3, self.rows, self.width), dtype=np.int64)
        for number, (context, branches) in enumerate(self._branches.items(), start=1):
            row, start = self._place[context]
            end = start + _length(context, branches) // WORD
            piece[row, start:end] = number
            positions[row, start:end] = np.arange(end - start)
            for sibling, (key, offset) in enumerate(branches.items(), start=1):
                here = slice(start + offset // WORD, start + (offset + len(key) - len(context)) // WORD)
                branch[row, here] = sibling
                positions[row, here] -= (offset - len(context)) // WORD
        seen = (branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None])
        mask = seen & (piece[:, None, :] == piece[:, :, None]) & np.tri(self.width, dtype=bool)
        return torch.from_numpy(positions), torch.from_numpy(mask[:, None])

    def flat(self, keys: Sequence[bytes], sizes: Ints, col: Ints) -> Ints:
        """Index into the flattened rows of columns ``col`` of segments ``keys``, ``sizes`` columns of each."""
        places = np.asarray([self._found[key] for key in keys], dtype=np.int64).reshape(-1, 3)
        first, context, shift = np.repeat(places, sizes, axis=0).T
        flat: Ints = first + col + np.where(col < context, 0, shift)
        return flat

    def _columns(self, context: bytes, shift: int) -> tuple[int, int, int]:
        row, start = self._place[context]
        return row * self.width + start, len(context) // WORD, shift


def _leaves(keys: set[bytes]) -> dict[bytes, bytes]:
    """For every key the longest one that continues it, or itself."""
    longest: dict[bytes, bytes] = {}
    leaf = b""
    for key in sorted(keys, reverse=True):  # everything that continues a key sorts directly behind it
        if not leaf.startswith(key):
            leaf = key
        longest[key] = leaf
    return longest


def _shared(segment: Segment) -> bytes:
    """The context that other segments may share; all of the segment where sharing it would save little."""
    length = (int(segment.col[0]) + 1) * WORD
    return segment.key[:length] if len(segment.key) <= 2 * length else segment.key


def _length(context: bytes, branches: dict[bytes, int]) -> int:
    return len(context) + sum(len(key) - len(context) for key in branches)
