"""Collate segments into one batch of tensors in which everything that repeats is read once.

Games repeat themselves: many segments of a batch share their context and differ in the action, or are equal. A row of
the batch is therefore a context followed by all its distinct continuations as branches. Branches do not see each
other, and their positions all continue the context's::

    input_ids   c0 c1 c2 | a0 a1 | b0 b1      two actions, a and b, taken in the same context c
    positions    0  1  2 |  3  4 |  3  4

A context that is the beginning of another row is read in that row. Where branches would make a row too wide, a new row
begins with the same context. Long rows come first, and rows of similar length form a group that is read by a forward
pass of its own, so that little of what is read is padding. The losses do not see any of this: they get N action tokens
as indices into S distinct states.

Shapes: R rows read by the model, L columns, S distinct states, N action tokens.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrl.tokens.segments import Segment

__all__ = ["BYTES_PER_ID", "Groups", "Ints", "RowLayout", "TokenBatch", "collate", "grouped"]

Ints: TypeAlias = NDArray[np.int64]
Groups: TypeAlias = tuple[tuple[int, int], ...]
"""(number of rows, width) of each group, in the order of the rows."""

BYTES_PER_ID = 4
"""Bytes of an id in a segment's key."""
_MAX_GROUPS = 8
_MIN_SAVING = 0.02  # share of all ids that another forward pass has to save
_MAX_BRANCHED_IDS = 2_048
"""Ids of a row with branches at most: its mask has the square of them."""


def grouped(lengths: Sequence[int]) -> Groups:
    """Cut rows, the longest first, into groups of similar length.

    Each cut is made where it saves most padding, as long as it saves enough to pay for another forward pass.
    """
    if not lengths:
        return ((0, 1),)
    rows = np.asarray(lengths, dtype=np.int64)
    cuts = [0, len(rows)]
    while len(cuts) <= _MAX_GROUPS:
        best_saved = 0
        best_cut = 0
        for start, end in pairwise(cuts):
            best_saved, best_cut = max((best_saved, best_cut), _best_cut(rows, start, end))
        if best_saved <= _MIN_SAVING * rows.sum():
            break
        cuts = sorted([*cuts, best_cut])
    groups = []
    for start, end in pairwise(cuts):
        groups.append((end - start, int(rows[start])))
    return tuple(groups)


def _best_cut(rows: Ints, start: int, end: int) -> tuple[int, int]:
    """Return the saving of the best cut in a group, and its place."""
    part = rows[start:end]
    if len(part) < 2:
        return 0, start
    # A cut after n rows narrows the rows behind it from the longest of all to the longest of their own.
    saved = (len(part) - np.arange(1, len(part))) * (part[0] - part[1:])
    best = int(saved.argmax())
    return int(saved[best]), start + 1 + best


class _RowKey(NamedTuple):
    """The identity of a row."""

    context: bytes
    """Key of the context from which the row's branches continue."""
    number: int
    """Number of the row among those with this context: a full row continues in the next number."""


class _Place(NamedTuple):
    """The place where a segment is read."""

    row_start: int
    """Index of the row's first id in the flattened rows."""
    context_length: int
    """Number of ids of the row's context."""
    shift: int
    """Number of ids between the context and the segment's branch: those of the branches before it."""


class RowLayout:
    """The rows of a batch, and the place where each segment is read.

    Segments are identified by keys, the bytes of their ids.

    Args:
        batch: any segments.
        bootstrap: also read the contexts that follow them.
    """

    def __init__(self, batch: Sequence[Segment], bootstrap: bool) -> None:
        # 1. Collect the keys. A key that begins another one is read there, so only the longest become branches.
        context_keys = {}  # key of a segment -> key of the context that other segments may share
        keys = set()
        for segment in batch:
            context_keys[segment.key] = _context_key(segment)
            keys.add(segment.key)
            if bootstrap and segment.next_ids is not None:
                keys.add(segment.next_key)
        leaf_of = _leaves(keys)
        leaves = dict.fromkeys(leaf_of.values())

        # 2. Assign each leaf to the newest row of its context, or to a new row if that one is full.
        # One mask serves all rows of a batch, so a leaf that is longer than the limit rules out branches in all rows.
        longest_leaf = max(map(len, leaves), default=0) // BYTES_PER_ID
        max_row_bytes = _MAX_BRANCHED_IDS * BYTES_PER_ID if longest_leaf <= _MAX_BRANCHED_IDS else 0
        self._branches: dict[_RowKey, dict[bytes, int]] = {}  # row -> leaf -> byte of the row where its branch begins
        row_of_leaf: dict[bytes, _RowKey] = {}
        row_bytes: dict[_RowKey, int] = {}  # row -> its length so far
        newest_row: dict[bytes, _RowKey] = {}  # context -> its newest row
        for leaf in leaves:
            # Branches lie one after the other behind their context.
            context = context_keys.get(leaf, leaf)
            branch_bytes = len(leaf) - len(context)
            row = newest_row.setdefault(context, _RowKey(context, 0))
            begin = row_bytes.get(row, len(context))
            has_branches = begin > len(context)
            if has_branches and begin + branch_bytes > max_row_bytes:
                row = _RowKey(context, row.number + 1)
                newest_row[context] = row
                begin = len(context)
            self._branches.setdefault(row, {})[leaf] = begin
            row_of_leaf[leaf] = row
            row_bytes[row] = begin + branch_bytes

        # 3. Sort rows, longest first.
        order = sorted(row_bytes, key=row_bytes.__getitem__, reverse=True)
        self._row_index = {row: index for index, row in enumerate(order)}
        self.rows = len(order)
        row_lengths = [row_bytes[row] // BYTES_PER_ID for row in order]
        self.width = max(row_lengths, default=1)
        self.lengths = tuple(row_lengths)
        self.groups = grouped(row_lengths)

        # 4. Note where each key is read.
        self._places: dict[bytes, _Place] = {}
        for key, leaf in leaf_of.items():
            row = row_of_leaf[leaf]
            shift_bytes = self._branches[row][leaf] - len(row.context)
            self._places[key] = _Place(
                row_start=self._row_index[row] * self.width,
                context_length=len(row.context) // BYTES_PER_ID,
                shift=shift_bytes // BYTES_PER_ID,
            )

    def ids(self, pad: int) -> Ints:
        """(R, L) the rows."""
        ids = np.full((self.rows, self.width), pad, dtype=np.int64)
        for row, branches in self._branches.items():
            content = bytearray(row.context)
            for leaf in branches:
                content += leaf[len(row.context) :]
            row_ids = np.frombuffer(content, dtype=">u4")  # keys are big-endian
            ids[self._row_index[row], : len(row_ids)] = row_ids
        return ids

    def attention(self) -> tuple[Tensor | None, Tensor | None]:
        """(R, L) position ids and (R, 1, L, L) mask, or (None, None) when plain causal attention suffices."""
        most_branches = max(map(len, self._branches.values()), default=1)
        if most_branches == 1:
            return None, None
        # Zero at padding too: a row may be wider than the model has positions.
        positions, branch = np.zeros((2, self.rows, self.width), dtype=np.int64)
        for row, branches in self._branches.items():
            index = self._row_index[row]
            row_length = self.lengths[index]
            positions[index, :row_length] = np.arange(row_length)
            for number, (leaf, begin) in enumerate(branches.items(), start=1):
                end = begin + len(leaf) - len(row.context)
                here = slice(begin // BYTES_PER_ID, end // BYTES_PER_ID)
                branch[index, here] = number
                # Positions of every branch continue those of the context.
                positions[index, here] -= (begin - len(row.context)) // BYTES_PER_ID
        # A token reads the context (branch 0) and the earlier tokens of its own branch.
        seen = (branch[:, None, :] == 0) | (branch[:, None, :] == branch[:, :, None])
        mask = seen & np.tri(self.width, dtype=bool)
        return torch.from_numpy(positions), torch.from_numpy(mask[:, None])

    def flat(self, keys: Sequence[bytes], sizes: Ints, col: Ints) -> Ints:
        """Index into the flattened rows of columns ``col`` of segments ``keys``, ``sizes`` columns of each."""
        places = np.asarray(list(map(self._places.__getitem__, keys)), dtype=np.int64).reshape(-1, 3)
        row_start, context_length, shift = np.repeat(places, sizes, axis=0).T
        flat: Ints = row_start + col + np.where(col < context_length, 0, shift)
        return flat


def _leaves(keys: set[bytes]) -> dict[bytes, bytes]:
    """For every key the longest one that continues it, or itself."""
    longest: dict[bytes, bytes] = {}
    leaf = b""
    # In reverse order everything that continues a key comes directly before it.
    for key in sorted(keys, reverse=True):
        if not leaf.startswith(key):
            leaf = key
        longest[key] = leaf
    return longest


def _context_key(segment: Segment) -> bytes:
    """Return the key of the context before the first action, which other segments may share.

    If the rest is longer than that context, return the key of the whole segment: sharing would save little.
    """
    context_bytes = (int(segment.col[0]) + 1) * BYTES_PER_ID
    rest_bytes = len(segment.key) - context_bytes
    return segment.key[:context_bytes] if rest_bytes <= context_bytes else segment.key


T = TypeVar("T", bound=np.generic)


class TokenBatch(NamedTuple):
    """The input of the learning code. N action tokens index S distinct states of the R x L ids that the model reads."""

    input_ids: Tensor
    """(R, L) right-padded ids, long rows first."""
    groups: Groups
    """Rows that are read together, without the padding that all of them end with: numbers of rows, and widths."""
    lengths: tuple[int, ...]
    """(R,) number of ids of each row, without padding."""
    positions: Tensor | None
    """(R, L) position of each id in its context; None where that is just its column."""
    mask: Tensor | None
    """(R, 1, L, L) bool: the token of the third axis reads that of the last axis; None where that is plainly causal."""
    row: Tensor
    """(S,) row of each state."""
    col: Tensor
    """(S,) column of each state: the hidden vector there has read up to and including this token."""
    state: Tensor
    """(N,) index into the states: where the action token is chosen."""
    token: Tensor
    """(N,) id of the action token."""
    reward: Tensor
    """(N,) float32."""
    next: Tensor | None
    """(N,) index of the state in which the policy acts next; for a terminated token its own state, to be masked. None
    if not asked for: then the contexts beyond are not read either."""
    terminated: Tensor
    """(N,) bool: the value beyond this token is zero."""
    return_to_go: Tensor
    """(N,) float32, NaN if not asked for."""
    expected_tokens: Tensor
    """() float32, the number of action tokens that batches of this source have on average; see `scale`."""
    observation_state: Tensor | None = None
    """(M,) index of the states before the observation tokens; None if not asked for."""
    observation_token: Tensor | None = None
    """(M,) ids of those tokens: each as often as the episodes have it."""
    expected_observation_tokens: Tensor | None = None
    """() float32, the number of observation tokens that batches of this source have on average."""
    columns: Mapping[str, Tensor] | None = None
    """(N,) float32 each, by name: what an algorithm attached to each action token; None where none did."""
    turn_end: Tensor | None = None
    """(N,) bool: the last token of its action. Tokens of an action are neighbours."""
    after: Tensor | None = None
    """(N,) index of the state that has read the action token and nothing beyond; None if not asked for."""

    @property
    def n_tokens(self) -> int:
        """N, the number of action tokens."""
        return int(self.token.numel())

    @property
    def scale(self) -> Tensor:
        """() N / E[N]. A mean over the N action tokens times this is their sum / E[N]."""
        # Dividing by the constant E[N] gives every token the same weight in any batch. Dividing by N would favour the
        # tokens of short episodes where a batch holds episodes of similar length.
        return self.n_tokens / self.expected_tokens

    @property
    def observation_scale(self) -> Tensor:
        """() M / E[M], the same for the M observation tokens; 0 if they were not asked for."""
        if self.observation_token is None or self.expected_observation_tokens is None:
            return torch.zeros_like(self.expected_tokens)
        return self.observation_token.numel() / self.expected_observation_tokens

    def to(self, device: torch.device) -> "TokenBatch":
        """The same batch on another device. A GPU copies it while it works on what came before."""
        moved: dict[str, Any] = {}
        for name, value in self._asdict().items():
            if isinstance(value, Tensor):
                moved[name] = _moved(value, device)
        if self.columns is not None:
            moved["columns"] = {name: _moved(column, device) for name, column in self.columns.items()}
        return self._replace(**moved)

    def without_targets(self) -> "TokenBatch":
        """The same rows without action tokens or observation tokens."""
        empty: dict[str, Any] = {}
        for name in ("state", "token", "reward", "next", "terminated", "return_to_go", "turn_end", "after",
                     "observation_state", "observation_token"):  # fmt: skip
            value = getattr(self, name)
            if value is not None:
                empty[name] = value[:0]
        if self.columns is not None:
            empty["columns"] = dict.fromkeys(self.columns, self.token[:0].float())
        return self._replace(**empty)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    # From other memory than pinned memory, a copy waits for all work of the GPU.
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def collate(
    batch: Sequence[Segment],
    pad: int = 0,
    observations: bool = False,
    bootstrap: bool = True,
    expected: tuple[float, float] | None = None,
    after: bool = False,
) -> TokenBatch:
    """Make one batch of segments.

    Args:
        batch: any segments, in any order; an empty list gives a batch without action tokens.
        pad: id to fill rows with; nothing reads it.
        observations: also index the observation tokens, each in the segment in which it is new.
        bootstrap: also read and index the state that follows each action token; without, where every turn has a window
            of its own, half as much is read.
        expected: the numbers of action tokens and of observation tokens that batches of this source have on average
            (see `TokenBatch.scale`); None: those of this batch, for batches that stand alone.
        after: also index the states that have read the action tokens.
    """
    layout = RowLayout(batch, bootstrap)
    keys = [segment.key for segment in batch]
    returns: list[NDArray[Any]] = []
    for segment in batch:
        if segment.return_to_go is None:
            returns.append(np.full(len(segment.col), np.nan))
        else:
            returns.append(segment.return_to_go)

    # Places are indices into the flattened rows: of the states before the action tokens, after them, and so on.
    sizes = np.asarray([len(segment.col) for segment in batch], dtype=np.int64)
    col = _join([segment.col for segment in batch], np.int64)
    here = layout.flat(keys, sizes, col)
    nowhere = here[:0]
    last = np.cumsum(sizes) - 1
    terminated = np.zeros(len(here), dtype=bool)
    terminated[last] = [segment.next_ids is None for segment in batch]
    next_places = _next_places(layout, batch, here, last) if bootstrap else nowhere
    after_places = layout.flat(keys, sizes, col + 1) if after else nowhere
    observation_places, observation_tokens = _observations(layout, batch) if observations else (nowhere, nowhere)

    # Every distinct place becomes a state; the tokens get indices into the states.
    places = [here, next_places, after_places, observation_places]
    states, inverse = np.unique(np.concatenate(places), return_inverse=True)
    ends = np.cumsum(list(map(len, places)))[:-1]
    state, next_state, after_state, observation_state = map(torch.from_numpy, np.split(inverse, ends))

    positions, mask = layout.attention()
    ids = layout.ids(pad)
    n_tokens, n_observation_tokens = expected or (len(here), len(observation_tokens))
    return TokenBatch(
        input_ids=torch.from_numpy(ids),
        groups=layout.groups,
        lengths=layout.lengths,
        positions=positions,
        mask=mask,
        row=torch.from_numpy(states // layout.width),
        col=torch.from_numpy(states % layout.width),
        state=state,
        token=torch.from_numpy(_join([segment.token for segment in batch], np.int64)),
        reward=torch.from_numpy(_join([segment.reward for segment in batch], np.float32)),
        next=next_state if bootstrap else None,
        terminated=torch.from_numpy(terminated),
        return_to_go=torch.from_numpy(_join(returns, np.float32)),
        expected_tokens=torch.tensor(float(n_tokens) or 1.0),
        observation_state=observation_state if observations else None,
        observation_token=torch.from_numpy(observation_tokens) if observations else None,
        expected_observation_tokens=torch.tensor(float(n_observation_tokens) or 1.0) if observations else None,
        columns=_columns(batch),
        turn_end=torch.from_numpy(_join([segment.turn_end for segment in batch], np.bool_)),
        after=after_state if after else None,
    )


def _next_places(layout: RowLayout, batch: Sequence[Segment], here: Ints, last: Ints) -> Ints:
    """(N,) place of the state in which the policy acts next; a terminated token's own place.

    Args:
        layout: rows of the batch.
        batch: segments of the batch.
        here: (N,) place of the state of each action token.
        last: index of the last action token of each segment.
    """
    # Within a segment the next state is that of the next action token.
    next_places = np.roll(here, -1)
    # After the last action token of a segment it is the end of the context that follows, if there is one.
    next_keys = []
    next_cols = []
    is_followed = np.zeros(len(batch), dtype=bool)
    for index, segment in enumerate(batch):
        if segment.next_ids is not None:
            is_followed[index] = True
            next_keys.append(segment.next_key)
            next_cols.append(len(segment.next_ids) - 1)
    last_col = np.asarray(next_cols, dtype=np.int64)
    followed = last[is_followed]
    next_places[followed] = layout.flat(next_keys, np.ones_like(last_col), last_col)
    ended = last[~is_followed]
    next_places[ended] = here[ended]
    return next_places


def _observations(layout: RowLayout, batch: Sequence[Segment]) -> tuple[Ints, Ints]:
    """(M,) the places before the observation tokens that are new in these segments, and those tokens."""
    keys = []
    cols = []
    tokens = []
    sizes = []
    for segment in batch:
        col = segment.observation_col()
        keys.append(segment.key)
        cols.append(col)
        tokens.append(segment.ids[col + 1])
        sizes.append(len(col))
    places = layout.flat(keys, np.asarray(sizes, dtype=np.int64), _join(cols, np.int64))
    return places, _join(tokens, np.int64)


def _columns(batch: Sequence[Segment]) -> dict[str, Tensor] | None:
    """The columns that all segments have, (N,) each."""
    columns = {}
    for name in batch[0].columns if batch else ():
        columns[name] = torch.from_numpy(_join([segment.columns[name] for segment in batch], np.float32))
    return columns or None


def _join(parts: Sequence[NDArray[Any]], dtype: type[T]) -> NDArray[T]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
