"""A language model that reads many growing texts at once and never reads a token twice while its weights stay."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import PreTrainedModel

from lmrl.decoding.check import check_model
from lmrl.decoding.reader import Reader
from lmrl.errors import UserError, check_range
from lmrl.models.lm import logit_table, positions_of

__all__ = ["Engine", "Weights"]

_SAMPLES = 256  # numbers of each tensor that are compared

_steps = 0


def _count(*_: Any) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count)


class Weights:
    """Notices that a model's parameters were changed.

    Any step of any optimizer of torch counts: fused kernels leave a tensor's version as it is, and under FSDP another
    tensor than the one that is read takes the step. Next to it the tensors' addresses and versions are compared, and of
    each tensor 256 numbers at equal distances: for writers that pass autograd by, such as ``.data`` and collectives.

    A write that is none of these and touches fewer than one in 256 of a tensor's numbers can go unnoticed.

    Args:
        model: whose parameters; they may be replaced by others of the same names.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._places = [(m._parameters, name) for m in modules for name, p in m._parameters.items() if p is not None]
        self._marks, self._sample = self._look()

    def changed(self) -> bool:
        """Whether they are others than at the last call."""
        marks, sample = self._look()
        same = marks == self._marks and torch.equal(sample, self._sample)
        self._marks = marks
        self._sample = sample
        return not same

    def _look(self) -> tuple[list[int], Tensor]:
        parameters = [holder[name] for holder, name in self._places]
        found = [p for p in parameters if p is not None]
        marks = [_steps]
        for p in found:
            marks += (p.data_ptr(), 0 if p.is_inference() else p._version)
        with torch.inference_mode():
            return marks, torch.cat([_spread(p) for p in found])


def _spread(tensor: Tensor) -> Tensor:
    size = tensor.numel()
    if not tensor.is_contiguous():
        return tensor.flatten()[:: max(1, size // _SAMPLES)]
    return tensor.as_strided((min(_SAMPLES, size),), (max(1, size // _SAMPLES),))


class Engine:
    """Reads contexts with a `transformers` causal LM, and keeps the keys and values of each slot between calls.

    Callers hand over whole contexts; the engine compares the ids with what the slot holds and reads only the rest.
    Rows have their own lengths and positions: padding is on the right, and nothing sees it. If weights have changed
    since the last `feed` (a training step; see `lmrl.decoding.engine.Weights`), all slots are read again.

    Args:
        model: GPT-2- or Llama-like: full attention, explicit ``position_ids``, eager or sdpa attention; see
            `lmrl.decoding.check.check_model`. It is run in eval mode and left in the mode it was in.
        slots: how many slots to make room for; more are added as they appear.
        max_length: longest context; None is the model's number of positions, or its attention window.
        compile: have `torch.compile` make the pass that reads one token per slot; a word is the name of a backend
            (true: ``inductor``). On a GPU that pass always runs on all slots and on 64, 128, 256... columns, as a CUDA
            graph, over a cache that is made in whole at the beginning.

    Raises:
        UserError: the model's attention cannot be driven this way, ``max_length`` exceeds its positions, or torch has
            no such backend.
    """

    def __init__(
        self, model: PreTrainedModel, slots: int = 32, max_length: int | None = None, compile: bool | str = False
    ) -> None:
        check_range("[1, inf)", slots=slots)
        positions = positions_of(model.config)
        self.max_length = positions if max_length is None else max_length
        if not 1 <= self.max_length <= positions:
            raise UserError(f"max_length must be between 1 and the model's {positions} positions, got {max_length}")
        check_model(model)
        self.model = model
        self._rows = slots
        self._compile = compile
        self._weights = Weights(model)
        self.reset()

    def reset(self) -> None:
        """Forget everything that was read."""
        self._reader = Reader(self.model, self._rows, self.max_length, self._compile)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Eval mode and no gradients inside; afterwards every module is in the mode it was in."""
        modules = [module for module in self.model.modules() if module.training] if self.model.training else []
        for module in modules:
            module.training = False
        try:
            with torch.inference_mode():
                yield
        finally:
            for module in modules:
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
        self._check(slots, contexts)
        if self._weights.changed():
            self.reset()
        self._reader.refresh_forward()
        with self.evaluating():
            new = [self._reader.slots.rewind(slot, ids) for slot, ids in zip(slots, contexts, strict=True)]
            return self._reader.read(slots, new)

    def append(self, slots: Sequence[int], ids: Sequence[int]) -> Tensor:
        """Read one more token in each slot; returns and raises as `feed` does."""
        for slot in slots:
            if len(self._reader.slots.held(slot)) >= self.max_length:
                raise UserError(f"a context must not exceed {self.max_length} tokens; slot {slot} is full")
        with self.evaluating():
            return self._reader.read(slots, [(token,) for token in ids])

    def logits(self, hidden: Tensor) -> Tensor:
        """``(rows, width)`` hidden vectors to ``(rows, vocabulary)`` logits in the model's precision."""
        with torch.inference_mode():
            return logit_table(self.model, hidden)

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
            return self._reader.read_branches(slots, root, branches)

    def _check(self, slots: Sequence[int], contexts: Sequence[Sequence[int]]) -> None:
        if len(set(slots)) != len(slots):
            raise UserError(f"slots must be distinct, got {list(slots)}")
        for slot, context in zip(slots, contexts, strict=True):
            if not 1 <= len(context) <= self.max_length:
                raise UserError(
                    f"a context must have 1 to {self.max_length} tokens; slot {slot} came with {len(context)}"
                )
