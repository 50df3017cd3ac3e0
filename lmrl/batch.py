"""Segments side by side as tensors, with everything that repeats read once.

Games repeat themselves: many segments of a batch share their context and differ in the action, or are equal. A row of
the batch is therefore a context followed by all its distinct continuations as branches, which do not see each other
and whose positions all continue the context's::

    input_ids   c0 c1 c2 | a0 a1 | b0 b1      two actions, a and b, said after the same context c
    positions    0  1  2 |  3  4 |  3  4

A context that is the beginning of another row is read there, and short rows are joined to longer ones (`lmrl.layout`).
To the losses all this is invisible: they see N action tokens as indices into S distinct states.

Shapes: R rows read by the model, L columns, S distinct states, N action tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmrl.layout import WORD, Ints, Layout
from lmrl.tokens import Segment

__all__ = ["TokenBatch", "collate"]

T = TypeVar("T", bound=np.generic)


class TokenBatch(NamedTuple):
    """What the learning code sees. N action tokens index S distinct states of the R x L ids that the model reads."""

    input_ids: Tensor
    """(R, L) right-padded ids."""
    positions: Tensor | None
    """(R, L) position of each id in its context; None where that is just its column."""
    mask: Tensor | None
    """(R, 1, L, L) bool, who reads (third axis) whom (last axis); None where that is plainly causal."""
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
    """(N,) index of the state in which the policy speaks next; for a terminated token its own state, to be masked. None
    if not asked for: then the contexts beyond are not read either."""
    terminated: Tensor
    """(N,) bool: the value beyond this token is zero."""
    return_to_go: Tensor
    """(N,) float32, NaN where nobody asked for it."""
    read_state: Tensor | None = None
    """(M,) index of the states before the tokens that are read and not trained as actions; None if not asked for."""
    read_token: Tensor | None = None
    """(M,) ids of those tokens."""
    extra: Tensor | None = None
    """(k, N) float32, what an algorithm attached to each action token; None where nobody did."""

    @property
    def n_tokens(self) -> int:
        """N, the number of action tokens."""
        return int(self.token.numel())

    def unspoken(self) -> "TokenBatch":
        """The same rows without anything to learn from them."""
        per_token = ("state", "token", "reward", "next", "terminated", "return_to_go", "read_state", "read_token")
        cut = {name: value[:0] for name in per_token if (value := getattr(self, name)) is not None}
        return self._replace(**cut, extra=None if self.extra is None else self.extra[:, :0])


def collate(batch: Sequence[Segment], pad: int = 0, read: bool = False, bootstrap: bool = True) -> TokenBatch:
    """Put segments side by side.

    Args:
        batch: any segments, in any order; an empty list gives a batch without action tokens.
        pad: id to fill rows with; nothing ever looks at it.
        read: also index the tokens that are only read; each counts once, however many segments share it.
        bootstrap: also read and index the state that follows each action token; without, where every turn has a window
            of its own, half as much is read.
    """
    layout = Layout(batch, bootstrap)
    sizes = np.asarray([len(s.col) for s in batch], dtype=np.int64)
    here = layout.flat([s.key for s in batch], sizes, _join([s.col for s in batch], np.int64))
    last = np.cumsum(sizes) - 1
    terminated = np.zeros(len(here), dtype=bool)
    terminated[last] = [s.next_ids is None for s in batch]
    after = _successors(layout, batch, here, last) if bootstrap else here[:0]
    before, heard = _read(layout, batch) if read else (here[:0], here[:0])
    states, inverse = np.unique(np.concatenate([here, after, before]), return_inverse=True)
    returns = [np.full(len(s.col), np.nan) if s.return_to_go is None else s.return_to_go for s in batch]
    extra = [s.extra for s in batch if s.extra is not None]
    positions, mask = layout.attention()
    ids = layout.ids(pad)
    return TokenBatch(
        input_ids=torch.from_numpy(ids),
        positions=positions,
        mask=mask,
        row=torch.from_numpy(states // layout.width),
        col=torch.from_numpy(states % layout.width),
        state=torch.from_numpy(inverse[: len(here)]),
        token=torch.from_numpy(_join([s.token for s in batch], np.int64)),
        reward=torch.from_numpy(_join([s.reward for s in batch], np.float32)),
        next=torch.from_numpy(inverse[len(here) : 2 * len(here)]) if bootstrap else None,
        terminated=torch.from_numpy(terminated),
        return_to_go=torch.from_numpy(_join(returns, np.float32)),
        read_state=torch.from_numpy(inverse[len(here) + len(after) :]) if read else None,
        read_token=torch.from_numpy(heard) if read else None,
        extra=torch.from_numpy(np.concatenate(extra, axis=1)) if extra else None,
    )


def _successors(layout: Layout, batch: Sequence[Segment], here: Ints, last: Ints) -> Ints:
    """(N,) the state after each action token; where the rules ended the episode with it, its own."""
    ends = np.asarray([s.next_ids is None for s in batch], dtype=bool)
    after = np.roll(here, -1)
    after[last[ends]] = here[last[ends]]
    following = [s.next_key for s in batch if s.next_key]
    lengths = np.asarray([len(key) // WORD for key in following], dtype=np.int64)
    after[last[~ends]] = layout.flat(following, np.ones_like(lengths), lengths - 1)
    return after


def _read(layout: Layout, batch: Sequence[Segment]) -> tuple[Ints, Ints]:
    """(M,) the places before the tokens that are not actions of these segments, and those tokens."""
    cols = [np.setdiff1d(np.arange(len(s.ids) - 1), s.col) for s in batch]
    sizes = np.asarray([len(col) for col in cols], dtype=np.int64)
    places = layout.flat([s.key for s in batch], sizes, _join(cols, np.int64))
    tokens = _join([s.ids[col + 1] for s, col in zip(batch, cols, strict=True)], np.int64)
    unique, first = np.unique(places, return_index=True)
    return unique, tokens[first]


def _join(parts: Sequence[NDArray[Any]], dtype: type[T]) -> NDArray[T]:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.zeros(0, dtype)
