"""The key-value cache of many rows, the slots that sit in its rows, and the attention masks over them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache

__all__ = ["SlotCache", "Slots", "attend", "bucket", "causal_mask", "tree_mask"]

_MAX_UNFUSED_QUERIES = 16  # queries of a head up to which attention on a GPU takes plain matrix products
_STEP = 64  # columns are allocated in multiples of this


def causal_mask(positions: Tensor, used: int, dtype: torch.dtype) -> Tensor:
    """The additive mask with which every token sees the columns up to its own position.

    Args:
        positions: ``(rows, new)``.
        used: columns in all.
        dtype: dtype of the hidden vectors.

    Returns:
        ``(rows, 1, new, used)``.
    """
    columns = torch.arange(used, device=positions.device)
    return _additive(columns <= positions[:, :, None], dtype)


def tree_mask(owner: Tensor, depth: Tensor, start: Tensor, used: int, dtype: torch.dtype) -> Tensor:
    """The additive mask of several continuations behind each row's context.

    A token sees the context and the earlier tokens of its own continuation.

    Args:
        owner: ``(new,)``, which continuation a token belongs to.
        depth: ``(new,)``, its place in there.
        start: ``(rows,)``, lengths of the contexts; the tokens lie in the columns from there on.
        used: columns in all.
        dtype: dtype of the hidden vectors.

    Returns:
        ``(rows, 1, new, used)``.
    """
    new = owner.shape[0]
    # (new, new): whether the second token is read by the first.
    family = (owner[:, None] == owner) & (depth[:, None] >= depth)
    # (rows, used): columns counted from the end of the context.
    behind = torch.arange(used, device=owner.device) - start[:, None]
    inside = (behind >= 0) & (behind < new)
    related = family[:, behind.clamp(0, new - 1)].transpose(0, 1)  # (rows, new, used)
    return _additive((behind < 0)[:, None] | (inside[:, None] & related), dtype)


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Scaled dot-product attention over the cache.

    Args:
        query: ``(rows, heads, new, head_dim)``.
        keys: ``(rows, key heads, used, head_dim)``; queries of neighbouring heads share a key head.
        values: likewise.
        mask: ``(rows, 1, new, used)``, additive.

    Returns:
        ``(rows, heads, new, head_dim)``.
    """
    if query.device.type != "cpu":
        return attend_on_gpu(query, keys, values, mask)
    is_shared = query.shape[1] != keys.shape[1]
    return scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=is_shared)


def attend_on_gpu(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Compute `attend` by the operations that are fast on a GPU.

    The kernels that take a mask there have no shared heads. So the queries of all heads that share a key head become
    queries of one head.
    """
    rows, heads, new, width = query.shape
    key_heads = keys.shape[1]
    shared = heads // key_heads
    query = query.reshape(rows, key_heads, shared * new, width)
    mask = mask.repeat(1, 1, shared, 1)
    if shared * new <= _MAX_UNFUSED_QUERIES:
        # A fused kernel works on 64 queries at once, whose arithmetic takes longer than reading keys and values.
        scores = torch.matmul(query, keys.transpose(-1, -2)).float() * width**-0.5 + mask
        attended = torch.matmul(scores.softmax(-1).to(values.dtype), values)
    else:
        attended = scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    return attended.reshape(rows, heads, new, width)


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    zero = torch.zeros((), dtype=dtype, device=visible.device)
    return torch.where(visible, zero, -torch.inf)[:, None]


def bucket(columns: int) -> int:
    """Return the next of 64, 96, 128, 192, 256, 384...: with few numbers of columns, few passes are recorded."""
    power = max(_STEP, 1 << (columns - 1).bit_length())
    three_quarters = 3 * power // 4
    if power > _STEP and columns <= three_quarters:
        return three_quarters
    return power


class SlotCache(Cache):
    """A `transformers` cache in which every row has its own length.

    Each layer keeps one block of keys and one of values, shaped ``(rows, heads, columns, head_dim)``; the heads are
    the key-value heads, so grouped-query models store no copies. A forward pass runs on a contiguous range of rows,
    because a range is a view while a gather would copy the whole cache at every step; `swap` moves rows together.

    Set with `place` where the next forward pass writes. The model has to be given explicit ``position_ids`` and a 4-D
    ``attention_mask``, since lengths differ by row; the cache itself hides nothing.

    Args:
        rows: rows to begin with; `grow` adds more.
        limit: tokens that a row will hold at most. Columns are added on the way there, by doubling.
        fixed: for passes over all rows (`bucket`): there are as many columns as a bucket has, and one more that is
            never read. The blocks are marked as tensors that stay where they are: a CUDA graph writes into them.
    """

    def __init__(self, rows: int, limit: int, fixed: bool = False) -> None:
        super().__init__(layers=[])
        self.rows = rows
        self._limit = limit
        self._fixed = fixed
        self._spare_columns = 1 if fixed else 0
        self._columns = min(_STEP, limit) + self._spare_columns
        self.moves = 0  # how often the blocks have been replaced by larger ones
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._range = slice(0, 0)
        self._used = 0
        self._where: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))

    @property
    def ready(self) -> bool:
        """Whether something has been read, so that there are blocks."""
        return bool(self._keys)

    def place(self, first: int, columns: Tensor, used: int, room: int) -> None:
        """Let the next forward pass run on the rows from ``first`` on.

        Args:
            first: row of the batch's first entry; the others follow it.
            columns: ``(batch, new)``, where each new token is written; -1 is the last column that exists.
            used: how many columns the attention reads.
            room: a number that every entry of ``columns`` is below (padding may be written behind ``used``).
        """
        batch = columns.shape[0]
        self._range = slice(first, first + batch)
        self._used = used
        self._where = (torch.arange(batch, device=columns.device)[:, None], columns)
        self.make_room(room)

    def make_room(self, columns: int) -> None:
        """Enlarge the blocks if they have fewer columns."""
        if columns <= self._columns - self._spare_columns:
            return
        if self._fixed:
            self._resize(self.rows, max(columns, min(bucket(columns), self._limit)) + self._spare_columns)
        else:
            # Doubling keeps copies rare.
            needed = -(-columns // _STEP) * _STEP
            self._resize(self.rows, max(needed, min(2 * self._columns, self._limit)))

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write ``(batch, heads, new, head_dim)`` and return all that the batch may read, as views."""
        # The first forward pass shows how many layers there are, and their shapes.
        while len(self._keys) <= layer_idx:
            self._keys.append(self._zeros(key_states))
            self._values.append(self._zeros(value_states))
        keys = self._keys[layer_idx][self._range]
        values = self._values[layer_idx][self._range]
        if self._fixed and len(keys) == self.rows:
            # Into the block itself: written through a view, a compiled step on a GPU copied all of it, there and back.
            row, column = self._where
            head = torch.arange(keys.shape[1], device=keys.device)
            where = (row[:, :, None], head[:, None], column[:, None])
            self._keys[layer_idx].index_put_(where, key_states)
            self._values[layer_idx].index_put_(where, value_states)
        else:
            keys.transpose(1, 2).index_put_(self._where, key_states.transpose(1, 2))
            values.transpose(1, 2).index_put_(self._where, value_states.transpose(1, 2))
        return keys[:, :, : self._used], values[:, :, : self._used]

    def swap(self, left: Sequence[int], right: Sequence[int], used: int) -> None:
        """Exchange the rows ``left[i]`` and ``right[i]``, as far as their first ``used`` columns."""
        for block in (*self._keys, *self._values):
            for left_row, right_row in zip(left, right, strict=True):
                # Plain copies of one row's block: four times as fast as indexing with lists of rows.
                left_block = block[left_row, :, :used]
                right_block = block[right_row, :, :used]
                kept = left_block.clone()
                left_block.copy_(right_block)
                right_block.copy_(kept)

    def grow(self, rows: int) -> None:
        """Make room for ``rows`` rows in all; what is stored stays."""
        self._resize(rows, self._columns)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many columns the current forward pass reads (rows differ: positions are passed explicitly)."""
        return self._used

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Columns of the mask, and the first of them."""
        return self._used, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Tokens that a row holds at most."""
        return self._limit

    def _zeros(self, like: Tensor) -> Tensor:
        # Zeros, not empty memory: a hidden column has weight 0, but 0 * NaN would still be NaN.
        _, heads, _, width = like.shape
        block = torch.zeros(self.rows, heads, self._columns, width, dtype=like.dtype, device=like.device)
        if self._fixed:
            torch._dynamo.mark_static_address(block)
        return block

    def _resize(self, rows: int, columns: int) -> None:
        old_rows = self.rows
        old_columns = self._columns
        self.rows = rows
        self._columns = columns
        self.moves += 1
        for blocks in (self._keys, self._values):
            for layer, block in enumerate(blocks):
                blocks[layer] = self._zeros(block)
                blocks[layer][:old_rows, :, :old_columns] = block


class Slots:
    """The assignment of slots, which are any integers, to the rows of a `SlotCache`, and the ids that rows hold.

    Args:
        cache: cache whose rows are assigned.
    """

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._row: dict[int, int] = {}  # slot -> row
        self._slot: list[int] = []  # row -> slot
        self._held: dict[int, list[int]] = {}

    def held(self, slot: int) -> list[int]:
        """The ids whose keys and values the slot's row holds."""
        return self._held[slot]

    def keep(self, slots: Sequence[int], new: Sequence[Sequence[int]]) -> None:
        """Note what has been read into each slot's row."""
        for slot, ids in zip(slots, new, strict=True):
            self._held[slot].extend(ids)

    def row(self, slot: int) -> int:
        """Return the row of the slot."""
        return self._row[slot]

    def rewind(self, slot: int, context: Sequence[int]) -> list[int]:
        """Cut a slot back to the longest prefix it shares with a context, and return the ids left to read.

        The last id is always left, so that reading gives a hidden vector.
        """
        if slot not in self._row:
            self._admit(slot)
        held = self._held[slot]
        wanted = list(context)
        shared = min(len(held), len(wanted) - 1)
        # Nearly always the context continues what the slot holds, which one comparison of lists shows.
        if held[:shared] != wanted[:shared]:
            # The first id that differs; there is one.
            shared = next(i for i in range(shared) if held[i] != wanted[i])
        del held[shared:]
        return wanted[shared:]

    def arrange(self, slots: Sequence[int]) -> tuple[int, list[int]]:
        """Bring slots into neighbouring rows.

        Returns:
            The first row, and the order in which the rows hold the slots: row ``first + i`` is ``slots[order[i]]``.
        """
        rows = [self._row[slot] for slot in slots]
        first = min(rows)
        if max(rows) - first + 1 != len(rows):
            # To the front: rows that leave a batch one after the other then cost one short copy each.
            self._to_front(rows)
            rows = [self._row[slot] for slot in slots]
            first = 0
        return first, np.argsort(rows).tolist()

    def _admit(self, slot: int) -> None:
        self._row[slot] = len(self._slot)
        self._slot.append(slot)
        self._held[slot] = []
        if len(self._slot) > self._cache.rows:
            self._cache.grow(2 * self._cache.rows)

    def _to_front(self, rows: list[int]) -> None:
        # Rows of the batch that lie too far back change places with rows at the front that are not in the batch.
        free = sorted(set(range(len(rows))).difference(rows))
        outside = [row for row in rows if row >= len(rows)]
        used = max(len(self._held[self._slot[row]]) for row in (*free, *outside))
        self._cache.swap(free, outside, used)
        for left, right in zip(free, outside, strict=True):
            left_slot = self._slot[left]
            right_slot = self._slot[right]
            self._slot[left] = right_slot
            self._slot[right] = left_slot
            self._row[right_slot] = left
            self._row[left_slot] = right
