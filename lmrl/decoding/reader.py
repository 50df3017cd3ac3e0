"""Forward passes of a language model over the rows of a slot cache, compiled if wanted."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedConfig, PreTrainedModel

from lmrl.decoding.cache import SlotCache, Slots, bucket, causal_mask, tree_mask
from lmrl.decoding.forward import Forward, ForwardChoice
from lmrl.errors import unknown
from lmrl.models.lm import allow_compiled_variants, trunk_of

__all__ = ["Read", "Reader", "backend_of", "is_static", "step_for"]

Read: TypeAlias = Callable[[PreTrainedModel, SlotCache, Tensor, Tensor, int, torch.dtype], Tensor]
"""The signature of `_read_new`."""

_MAX_VARIANTS = 64  # shapes and models that may be compiled before torch gives up: buckets of columns, times models


def backend_of(choice: bool | str | None) -> str | None:
    """The backend that a setting names; true is ``inductor``, false and None are None.

    Raises:
        UserError: torch has no such backend.
    """
    if not choice:
        return None
    backend = "inductor" if choice is True else choice
    known = torch.compiler.list_backends(exclude_tags=())
    if backend not in known:
        raise unknown("compile", backend, known)
    return backend


def is_static(device: torch.device) -> bool:
    """Whether compiled passes use few fixed shapes (all rows, bucketed columns), as CUDA graphs require.

    A CPU has no graphs to replay, and rows without a new token would cost it time.
    """
    return device.type != "cpu"


def is_recorded(device: torch.device) -> bool:
    """Whether passes over all rows are recorded as CUDA graphs."""
    return device.type == "cuda"


class Recorder:
    """Records CUDA graphs that never run at the same time, and lets them share the memory for what they compute.

    With memory of their own, fifty graphs would hold fifty times as much.
    """

    def __init__(self) -> None:
        self._pool: Any = None

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Record the GPU work of a function as a CUDA graph, and return a function that repeats it by a single launch.

        Args:
            run: reads and writes tensors that stay where they are, and waits for nothing.

        Returns:
            Gives the same tensor at each call, with new numbers in it.
        """
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # Libraries make their plans and workspaces in a first run, which cannot be recorded.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = run()

        def replay() -> Tensor:
            graph.replay()
            return result

        return replay


def step_for(choice: bool | str, device: torch.device) -> Read | None:
    """Return `_read_new`, compiled; None if it is not to be.

    The compiled code belongs to the function, not to its caller: a policy that is made again every round finds it
    again, and weights are its inputs.
    """
    backend = backend_of(choice)
    if backend is None:
        return None
    static = is_static(device)
    # "reduce-overhead" is inductor with CUDA graphs.
    how: dict[str, Any] = {"mode": "reduce-overhead"} if static and backend == "inductor" else {"backend": backend}
    allow_compiled_variants(_MAX_VARIANTS)
    step: Read = torch.compile(_read_new, **how, dynamic=not static)
    return step


def _read_new(
    trunk: PreTrainedModel, cache: SlotCache, ids: Tensor, positions: Tensor, used: int, dtype: torch.dtype
) -> Tensor:
    """Read ids at the cache's current place, each attending to the columns up to its own position.

    Args:
        trunk: the model without its head.
        cache: where keys and values go.
        ids: ``(rows, new)``.
        positions: ``(rows, new)``.
        used: columns that are read.
        dtype: dtype of the hidden vectors.

    Returns:
        ``(rows, new, width)`` hidden vectors.
    """
    mask = causal_mask(positions, used, dtype)
    output = trunk(input_ids=ids, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True)
    hidden: Tensor = output.last_hidden_state
    return hidden


_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_MAX_PADDING = 256  # tokens of padding in a forward pass: they cost less than one more pass
_MAX_NEW_IDS = 32  # ids that a pass over all rows reads in each
_MAX_SCORES = 2**24  # attention scores per head in one forward pass; longer prompts are read in pieces


def _waits(config: PreTrainedConfig) -> bool:
    """Whether a forward pass reads a number back from the GPU, which a CUDA graph cannot hold."""
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer = [value for value in parameters.values() if isinstance(value, dict)]  # in models with several kinds
    # Dynamic scaling compares the longest position with the one before.
    return any("dynamic" in str(rope.get("rope_type")) for rope in (parameters, *by_layer))


class Reader:
    """Reads ids into slots. The caller must set eval mode, disable gradients and check lengths.

    Args:
        model: see `Engine`.
        rows: slots to make room for.
        limit: longest context.
        compile: see `Engine`.
        recorded: whether passes over all rows are recorded; None: on a GPU.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        rows: int,
        limit: int,
        compile: bool | str = False,
        recorded: bool | None = None,
    ) -> None:
        self._trunk = trunk_of(model)
        self._forward_choice = ForwardChoice(self._trunk)
        #: Chosen before the first read, since it may copy all weights.
        self._forward: Forward
        self._device = model.device
        self._dtype = model.dtype
        self._step = step_for(compile, self._device)
        if recorded is None:
            recorded = self._step is None and is_recorded(self._device) and not _waits(model.config)
        self._static = recorded or (self._step is not None and is_static(self._device))
        self._cache = SlotCache(rows, limit, fixed=self._static)
        self.slots = Slots(self._cache)
        # By new tokens and columns: what the pass is fed, and the pass.
        self._passes: dict[tuple[int, int], tuple[Tensor, Callable[[], Tensor]]] = {}
        self._recorder = Recorder()
        self._moves = 0  # `moves` of the cache when the passes were recorded: they write into its blocks

    def refresh_forward(self) -> None:
        """Choose how the model is run; hooks that were put on its layers since the last time then run."""
        self._forward = self._forward_choice.choose()

    def read(self, slots: Sequence[int], new: Sequence[Sequence[int]]) -> Tensor:
        """Read one or more new ids in each slot and return the hidden vectors after the last, ``(rows, width)``."""
        lengths = [len(ids) for ids in new]
        most = 1 if self._step is not None else _MAX_NEW_IDS  # per slot in a pass over all rows
        parts = []
        order: list[int] = []
        for group in self._groups(lengths, most):
            group_slots = [slots[i] for i in group]
            group_new = [new[i] for i in group]
            longest = max(map(len, group_new))
            if self._static and longest <= most and self._cache.ready:
                parts.append(self._read_all(group_slots, group_new))
            elif longest == 1:
                parts.append(self._read_one(group_slots, group_new))
            else:
                parts.append(self._read_group(group_slots, group_new))
            order += group
        return _undo_order(torch.cat(parts) if len(parts) > 1 else parts[0], order)

    def _groups(self, lengths: list[int], most: int) -> list[list[int]]:
        """Rows that are read together: those of a pass over all rows, and the others by `_of_similar_length`."""
        if max(lengths) == 1:
            return [list(range(len(lengths)))]
        if not self._static:
            return _of_similar_length(lengths)
        short = [row for row, length in enumerate(lengths) if length <= most]
        long = [row for row, length in enumerate(lengths) if length > most]
        groups = [short] if short else []
        for group in _of_similar_length([lengths[row] for row in long]):
            groups.append([long[place] for place in group])
        return groups

    def read_branches(self, slots: Sequence[int], root: Tensor, branches: Sequence[Sequence[int]]) -> Tensor:
        """Read continuations of what the slots hold, without keeping them (see `Engine.branch`).

        Args:
            slots: all with a context.
            root: ``(rows, width)``, the hidden vectors at the ends of the contexts.
            branches: ids of each continuation.

        Returns:
            ``(rows, continuations, longest, width)``, the vectors before each id.
        """
        hidden = root[:, None, None].repeat(1, len(branches), max(map(len, branches)), 1)
        # All continuations as one row of tokens: id, number of the continuation, place in it.
        tree = []
        for number, branch in enumerate(branches):
            for place in range(len(branch) - 1):  # the last id of a continuation is scored, not read
                tree.append((branch[place], number, place))
        if not tree:
            return hidden
        first, order, held = self._arrange(slots)
        ids, owner, depth = self._tensor(tree).unbind(1)
        start = self._tensor(held)
        used = max(held) + len(tree)
        # The tokens lie behind the context in the cache and are not kept: the next read writes over them.
        self._cache.place(first, start[:, None] + torch.arange(len(tree), device=self._device), used, used)
        mask = tree_mask(owner, depth, start, used, self._dtype)
        with self._attending():
            states = self._forward(self._cache, ids.expand(len(order), -1), start[:, None] + depth, mask)
        hidden[:, owner, depth + 1] = _undo_order(states, order)
        return hidden

    def _arrange(self, slots: Sequence[int]) -> tuple[int, list[int], list[int]]:
        """Bring slots into neighbouring rows: first row, order of the slots in the rows, and lengths in that order."""
        first, order = self.slots.arrange(slots)
        return first, order, [len(self.slots.held(slots[i])) for i in order]

    def _read_group(self, slots: list[int], new: list[Sequence[int]]) -> Tensor:
        first, order, held = self._arrange(slots)
        sizes = [len(new[i]) for i in order]
        longest = max(sizes)
        used = max(start + size for start, size in zip(held, sizes, strict=True))
        padded = [[*new[i], *[0] * (longest - len(new[i]))] for i in order]
        ids = self._tensor(padded)
        start = self._tensor(held)[:, None]
        last = self._tensor(sizes) - 1
        columns = start + torch.arange(longest, device=self._device)
        # Padding takes the position of its row's last id, since the model may not have the positions beyond. No token
        # sees padding, because its columns come later.
        positions = torch.minimum(columns, start + last[:, None])
        rows = torch.arange(len(order), device=self._device)
        # Long prompts are read in pieces of columns, so that the attention scores stay small.
        step = max(1, _MAX_SCORES // (len(order) * used))
        ends = torch.empty(0)
        for begin in range(0, longest, step):
            part = slice(begin, begin + step)
            self._cache.place(first, columns[:, part], used, max(held) + longest)
            hidden = self._read_eagerly(ids[:, part], positions[:, part], used)
            # (rows, width) at each row's last token; rows that have ended in an earlier piece keep theirs.
            piece_ends = hidden[rows, (last - begin).clamp(0, hidden.shape[1] - 1)]
            if begin == 0:
                ends = piece_ends
            else:
                ends = torch.where((last >= begin)[:, None], piece_ends, ends)
        self.slots.keep(slots, new)
        return _undo_order(ends, order)

    def _read_one(self, slots: Sequence[int], new: Sequence[Sequence[int]]) -> Tensor:
        """Read a group like `_read_group` where every slot has one new id, so that nothing is ragged."""
        first, order, held = self._arrange(slots)
        used = max(held) + 1
        tokens = [new[i][0] for i in order]
        ids, positions = self._tensor([tokens, held])[..., None]
        self._cache.place(first, positions, used, used)
        # Prompts come in too many shapes to be compiled, and there the arithmetic counts.
        if self._step is not None and self._cache.ready:
            hidden = self._step(self._trunk, self._cache, ids, positions, used, self._dtype)
        else:
            hidden = self._read_eagerly(ids, positions, used)
        self.slots.keep(slots, new)
        return _undo_order(hidden[:, 0], order)

    def _read_all(self, slots: Sequence[int], new: Sequence[Sequence[int]]) -> Tensor:
        """Read up to `_MAX_NEW_IDS` ids in each slot, in a pass over all rows that always has one of few shapes."""
        rows = np.array([self.slots.row(slot) for slot in slots])
        held = np.array([len(self.slots.held(slot)) for slot in slots])[:, None]
        sizes = np.array([len(ids) for ids in new])[:, None]
        width = 1 << (int(sizes.max()) - 1).bit_length()
        used = min(bucket(int((held + sizes).max())), self._cache.get_max_length())
        fed = np.zeros((3, self._cache.rows, width), dtype=np.int64)
        ids, positions, columns = fed  # views
        # Padding is written to the last column (-1), which no row reads. It takes the position of its row's last id,
        # since the model may not have the positions beyond.
        columns[:] = -1
        place = np.arange(width)
        is_new = place < sizes
        padded = np.zeros((len(slots), width), dtype=np.int64)
        padded[is_new] = list(chain.from_iterable(new))
        ids[rows] = padded
        positions[rows] = held + np.minimum(place, sizes - 1)
        columns[rows] = np.where(is_new, held + place, -1)
        self._cache.make_room(used)
        ends = self._tensor(rows), self._tensor(sizes[:, 0] - 1)  # before the pass, for which a copy would wait
        hidden = self._pass(torch.from_numpy(fed), used)
        self.slots.keep(slots, new)
        return hidden[ends]

    def _pass(self, fed: Tensor, used: int) -> Tensor:
        """Run a compiled or recorded pass over all rows.

        Args:
            fed: ``(3, all rows, new)``: ids, their positions, and the columns where their keys and values go.
            used: columns that are read.

        Returns:
            ``(all rows, new, width)`` hidden vectors, which the next pass overwrites.
        """
        if self._step is not None:
            ids, positions, columns = fed.to(self._device)
            self._cache.place(0, columns, used, used)
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            return self._step(self._trunk, self._cache, ids, positions, used, self._dtype)
        if self._cache.moves != self._moves:
            self._passes.clear()
            self._moves = self._cache.moves
        shape = (fed.shape[2], used)
        if shape not in self._passes:
            kept = fed.to(self._device, copy=True)
            kept_ids, kept_positions, kept_columns = kept  # views, which later passes are copied into

            def run() -> Tensor:
                self._cache.place(0, kept_columns, used, used)
                return self._read_eagerly(kept_ids, kept_positions, used)

            self._passes[shape] = (kept, self._recorder.record(run))
        kept, replay = self._passes[shape]
        kept.copy_(fed)
        return replay()

    def _read_eagerly(self, ids: Tensor, positions: Tensor, used: int) -> Tensor:
        mask = causal_mask(positions, used, self._dtype)
        with self._attending():
            return self._forward(self._cache, ids, positions, mask)

    def _attending(self) -> AbstractContextManager[None]:
        """Return a context in which attention on a GPU runs without cuDNN."""
        # cuDNN plans again for every number of columns. On an H100 (GPT-2 small, bfloat16, 256 rows) the plan takes
        # 3.8 ms per layer, the attention 0.15 ms.
        return sdpa_kernel(_KERNELS) if self._device.type == "cuda" else nullcontext()

    def _tensor(self, numbers: object) -> Tensor:
        return torch.tensor(numbers, device=self._device)


def _of_similar_length(lengths: list[int]) -> list[list[int]]:
    """Rows to read together: one pass for all, unless padding them to the longest costs more than another pass."""
    groups: list[list[int]] = []
    longest = 0  # length of the longest row of the newest group
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    for place, row in enumerate(order):
        # The tokens of padding if this row and all shorter ones were read with the group.
        padding = (len(order) - place) * (longest - lengths[row])
        if not groups or padding > _MAX_PADDING:
            groups.append([])
            longest = lengths[row]
        groups[-1].append(row)
    return [sorted(group) for group in groups]


def _undo_order(values: Tensor, order: list[int]) -> Tensor:
    """Return the rows of ``values`` by index, where row ``i`` belongs at index ``order[i]``."""
    if order == list(range(len(order))):
        return values
    inverse = np.argsort(order).tolist()
    return values[inverse]
