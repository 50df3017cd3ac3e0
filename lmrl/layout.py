"""Which row and columns of a batch hold which ids: a context with its branches to a row, long rows first.

Rows of similar length make a group, which is read by a forward pass of its own, so that little of what is read is
padding although episodes of all lengths meet in a batch.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrl.tokens import Segment

__all__ = ["WORD", "Groups", "Ints", "Layout", "grouped"]

Ints: TypeAlias = NDArray[np.int64]
Groups: TypeAlias = tuple[tuple[int, int], ...]
"""Numbers of rows, in their order, and the width that they are read with."""

WORD = 4
"""Bytes of an id in a segment's key."""
_MOST_GROUPS = 8
_WORTH = 0.02  # share of what is read that another forward pass has to save


def grouped(lengths: Sequence[int]) -> Groups:
    """Cut rows, the longest first, into groups of similar length: where a cut saves most, while one saves enough."""
    if not lengths:
        return ((0, 1),)
    rows = np.asarray(lengths, dtype=np.int64)
    cuts = [0, len(rows)]
    while len(cuts) <= _MOST_GROUPS:
        found = [_best_cut(rows, start, end) for start, end in pairwise(cuts)]
        saved, cut = max(found, default=(0, 0))
        if saved <= _WORTH * rows.sum():
            break
        cuts = sorted([*cuts, cut])
    return tuple((end - start, int(rows[start])) for start, end in pairwise(cuts))


def _best_cut(rows: Ints, start: int, end: int) -> tuple[int, int]:
    """What a cut in a group saves, and where."""
    part = rows[start:end]
    if len(part) < 2:
        return 0, start
    saved = (len(part) - np.arange(1, len(part))) * (part[0] - part[1:])
    best = int(saved.argmax())
    return int(saved[best]), start + 1 + best


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
        lengths = {context: _length(context, branches) // WORD for context, branches in self._branches.items()}
        order = sorted(lengths, key=lengths.__getitem__, reverse=True)
        self._row = {context: row for row, context in enumerate(order)}
        self.rows, self.width = len(order), max(lengths.values(), default=1)
        self.groups = grouped([lengths[context] for context in order])
        self._found = {key: self._columns(*shifts[longest]) for key, longest in leaf.items()}

    def ids(self, pad: int) -> Ints:
        """(R, L) the rows."""
        ids = np.full((self.rows, self.width), pad, dtype=np.int64)
        for context, branches in self._branches.items():
            joined = np.frombuffer(context + b"".join(key[len(context) :] for key in branches), dtype=">u4")
            ids[self._row[context], : len(joined)] = joined
        return ids

    def attention(self) -> tuple[Tensor | None, Tensor | None]:
        """(R, L) positions and (R, 1, L, L) mask, unless both are what they always are."""
        if all(len(branches) == 1 for branches in self._branches.values()):
            return None, None
        # Zero at padding too: a row may be wider than the model has positions.
        positions, branch = np.zeros((2, self.rows, self.width), dtype=np.int64)
        for context, branches in self._branches.items():
            row, end = self._row[context], _length(context, branches) // WORD
            positions[row, :end] = np.arange(end)
            for sibling, (key, offset) in enumerate(branches.items(), start=1):
                here = slice(offset // WORD, (offset + len(key) - len(context)) // WORD)
                branch[row, here] = sibling
                positions[row, here] -= (offset - len(context)) // WORD
        seen = (branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None])
        mask = seen & np.tri(self.width, dtype=bool)
        return torch.from_numpy(positions), torch.from_numpy(mask[:, None])

    def flat(self, keys: Sequence[bytes], sizes: Ints, col: Ints) -> Ints:
        """Index into the flattened rows of columns ``col`` of segments ``keys``, ``sizes`` columns of each."""
        places = np.asarray([self._found[key] for key in keys], dtype=np.int64).reshape(-1, 3)
        first, context, shift = np.repeat(places, sizes, axis=0).T
        flat: Ints = first + col + np.where(col < context, 0, shift)
        return flat

    def _columns(self, context: bytes, shift: int) -> tuple[int, int, int]:
        return self._row[context] * self.width, len(context) // WORD, shift


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
