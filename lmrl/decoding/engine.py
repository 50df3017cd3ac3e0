"""A language model that reads many growing texts at once and never reads a token twice while its weights stay."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from lmrl.decoding.check import check_model
from lmrl.decoding.reader import Reader
from lmrl.errors import UserError, check_range
from lmrl.models.lm import positions_of, sampling_logits

__all__ = ["Engine", "ParameterWatch", "default_slots"]

_NUMBERS_COMPARED = 256  # numbers of each tensor that are compared


class ParameterWatch:
    """Notices that a model's parameters were changed, so that what was computed with them is out of date.

    It compares the address and the version of each parameter, and 256 of its numbers at equal distances. Autograd
    counts a version for every write that it sees. The numbers reveal the others: fused optimizers, ``.data``, and
    collectives such as those of FSDP. `lmrl.modules.LanguageModule` counts a version for its own optimizer steps.

    A write that autograd does not see and that changes fewer than one in 256 of a tensor's numbers can go unnoticed.

    Args:
        model: model whose parameters are watched; they may be replaced by others of the same names.
    """

    def __init__(self, model: nn.Module) -> None:
        # Where a parameter is found, not the parameter itself, which may be replaced.
        self._places: list[tuple[dict[str, nn.Parameter | None], str]] = []
        for module in model.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    self._places.append((module._parameters, name))
        self._marks, self._numbers = self._look()

    def changed(self) -> bool:
        """Whether the parameters have changed since the last call."""
        marks, numbers = self._look()
        same = marks == self._marks and torch.equal(numbers, self._numbers)
        self._marks = marks
        self._numbers = numbers
        return not same

    def _look(self) -> tuple[list[tuple[int, int]], Tensor]:
        """Return address and version of each parameter, and the sampled numbers of all."""
        marks = []
        numbers = []
        with torch.inference_mode():
            for parameters, name in self._places:
                parameter = parameters[name]
                if parameter is None:
                    continue
                version = 0 if parameter.is_inference() else parameter._version
                marks.append((parameter.data_ptr(), version))
                numbers.append(_sample(parameter))
            return marks, torch.cat(numbers)


def _sample(tensor: Tensor) -> Tensor:
    """Up to 256 numbers at equal distances, as a view where the tensor is contiguous."""
    size = tensor.numel()
    step = max(1, size // _NUMBERS_COMPARED)
    if not tensor.is_contiguous():
        return tensor.flatten()[::step]
    return tensor.as_strided((min(_NUMBERS_COMPARED, size),), (step,))


_SIZING_CONTEXT = 1024  # tokens of a context, by which the number of slots is chosen


def default_slots(model: PreTrainedModel, episodes: int | None = None) -> int:
    """Return how many episodes are played side by side: 32, on a GPU up to 256, and no more than there are.

    On a GPU it is the largest power of two for which the keys and values of contexts of 1,024 tokens take a quarter of
    the memory at most, but at least 8.

    Args:
        model: model that plays.
        episodes: number of episodes that this process is to play; None: any number.
    """
    if model.device.type != "cuda":
        return 32 if episodes is None else min(32, episodes)
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    tokens = min(_SIZING_CONTEXT, positions_of(config))
    bytes_per_slot: int = 2 * config.num_hidden_layers * heads * width * tokens * model.dtype.itemsize
    fitting = memory_of(model.device) // 4 // bytes_per_slot
    slots = max(8, min(256, 1 << max(0, fitting.bit_length() - 1)))
    return slots if episodes is None else min(slots, episodes)


def memory_of(device: torch.device) -> int:
    """Return the bytes of a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory)


class Engine:
    """Reads contexts with a `transformers` causal LM, and keeps the keys and values of each slot between calls.

    Callers pass whole contexts; the engine compares the ids with what the slot holds and reads only the rest. Rows have
    their own lengths and positions: padding is on the right, and nothing sees it. If weights have changed since the
    last `feed` (a training step; see `lmrl.decoding.engine.ParameterWatch`), all slots are read again.

    Args:
        model: GPT-2- or Llama-like: full attention, explicit ``position_ids``, eager or sdpa attention; see
            `lmrl.decoding.check.check_model`. It is run in eval mode and left in the mode it was in.
        slots: how many slots to make room for, None: `default_slots`; more are added as they appear.
        max_length: longest context; None is the model's number of positions, or its attention window.
        compile: have `torch.compile` make the pass that reads one token per slot; a word is the name of a backend
            (true: ``inductor``). On a GPU passes that read few tokens per slot always run on all slots and on 64, 96,
            128, 192... columns, as CUDA graphs, which are recorded without a compiler if this is false.

    Raises:
        UserError: the model's attention cannot be driven this way, ``max_length`` exceeds its positions, or torch has
            no such backend.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        slots: int | None = None,
        max_length: int | None = None,
        compile: bool | str = False,
    ) -> None:
        check_range("[1, inf)", slots=slots)
        positions = positions_of(model.config)
        self.max_length = positions if max_length is None else max_length
        if not 1 <= self.max_length <= positions:
            raise UserError(f"max_length must be between 1 and the model's {positions} positions, got {max_length}")
        check_model(model)
        self.model = model
        self.slots = default_slots(model) if slots is None else slots
        self._compile = compile
        self._weights = ParameterWatch(model)
        self._reader: Reader | None = None
        self.reset()

    def reset(self) -> None:
        """Forget everything that was read."""
        # Free the old cache and its copies of weights first: two may not fit into memory.
        self._reader = None
        self._reader = Reader(self.model, self.slots, self.max_length, self._compile)

    def _present_reader(self) -> Reader:
        assert self._reader is not None, "the last reset failed: call feed first, which makes a new reader"
        return self._reader

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Eval mode and no gradients inside; afterwards every module is in the mode it was in."""
        training = []
        if self.model.training:
            training = [module for module in self.model.modules() if module.training]
        for module in training:
            module.training = False
        try:
            with torch.inference_mode():
                yield
        finally:
            for module in training:
                module.training = True

    def feed(self, slots: Sequence[int], contexts: Sequence[Sequence[int]]) -> Tensor:
        """Read one context per slot, at least its last token.

        Args:
            slots: distinct slots, any integers.
            contexts: all ids of each context.

        Returns:
            ``(rows, width)``: the hidden vector after the last token and the final norm, in the model's precision.

        Raises:
            UserError: a context is empty or longer than ``max_length``, or a slot comes twice.
        """
        if len(set(slots)) != len(slots):
            raise UserError(f"slots must be distinct, got {list(slots)}")
        for slot, context in zip(slots, contexts, strict=True):
            if not 1 <= len(context) <= self.max_length:
                raise UserError(
                    f"a context must have 1 to {self.max_length} tokens; slot {slot} came with {len(context)}"
                )
        # The cache is stale after a weight change. The reader is None if the last reset ran out of memory.
        if self._weights.changed() or self._reader is None:
            self.reset()
        reader = self._present_reader()
        reader.refresh_forward()
        with self.evaluating():
            # Each slot keeps the longest prefix that it shares with its context.
            new = []
            for slot, context in zip(slots, contexts, strict=True):
                new.append(reader.slots.rewind(slot, context))
            return reader.read(slots, new)

    def append(self, slots: Sequence[int], ids: Sequence[int]) -> Tensor:
        """Read one more token in each slot; returns and raises as `feed` does."""
        reader = self._present_reader()
        for slot in slots:
            if len(reader.slots.held(slot)) >= self.max_length:
                raise UserError(f"a context must not exceed {self.max_length} tokens; slot {slot} is full")
        with self.evaluating():
            return reader.read(slots, [(token,) for token in ids])

    def logits(self, hidden: Tensor) -> Tensor:
        """``(rows, width)`` hidden vectors to ``(rows, vocabulary)`` logits; see `lmrl.models.lm.sampling_logits`."""
        with torch.inference_mode():
            return sampling_logits(self.model, hidden)

    def branch(
        self, slots: Sequence[int], contexts: Sequence[Sequence[int]], branches: Sequence[Sequence[int]]
    ) -> Tensor:
        """Read the same continuations after every context, each as if it were alone, in one forward pass.

        The continuations lie side by side behind the context, and a mask keeps them apart; afterwards the slots hold
        their contexts only.

        Args:
            slots: as in `feed`.
            contexts: as in `feed`.
            branches: ids of each continuation, not empty.

        Returns:
            ``(rows, continuations, longest, width)``: entry ``t`` is the hidden vector *before* token ``t`` of the
            continuation, where its logits and values are read. Entries behind a continuation's end mean nothing.

        Raises:
            UserError: as `feed`, or a context and a continuation together exceed ``max_length``.
        """
        if max(map(len, contexts)) + max(map(len, branches)) - 1 > self.max_length:
            raise UserError(f"a context and a continuation together must not exceed {self.max_length} tokens")
        root = self.feed(slots, contexts)
        with self.evaluating():
            return self._present_reader().read_branches(slots, root, branches)
