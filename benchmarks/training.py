"""Training: tokens per second, MFU and peak memory of BC and ILQL, against a plain loop around the same model.

Ours is what ``lmrl fit`` runs: Lightning's trainer with the module's training step, its optimizer, and gradients
clipped at 1. The plain loop is `transformers`' model with its own loss on all tokens, AdamW (fused) and the same
clipping, on the same batch. Either all tokens of a batch are action tokens, so that BC has as much to do as the plain
loop, or a quarter of them are (turns of 12 and 4 tokens), as in dialogues. All tokens that are read count.

Blocks of steps alternate between the sides, each after a few steps that are not counted (compilation is among them);
each figure is the median of the blocks. The FLOPs of MFU are those of `lmrl.training.flops`.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import repeat
from statistics import median
from typing import Any, NamedTuple

import lightning as L
import torch

from benchmarks.device import Stopwatch, Timing, peak
from benchmarks.row import Row
from benchmarks.size import CPU, Size
from benchmarks.training_step import batch
from lmrl.errors import UserError
from lmrl.models.lm import build_lm
from lmrl.modules import BC, ILQL, LanguageModule
from lmrl.tokens.collate import TokenBatch
from lmrl.training.flops import lm_cost

__all__ = ["run"]

CLIP = 1.0
PLAIN = "plain loop"


class Side(NamedTuple):
    """One side of the comparison, which is measured in blocks of steps."""

    key: str
    """The word that picks it on the command line."""
    block: Callable[[], Timing]
    tokens: int
    """The tokens that are read in a step."""
    flops: Callable[[], int]
    """The FLOPs of a step; known once a block has built the module."""
    asked: str = ""
    """The wanted MFU."""


class _Steps(L.Callback):
    """Runs a stopwatch from the step `first` to the last one."""

    def __init__(self, watch: Stopwatch, first: int) -> None:
        self.watch = watch
        self.first = first
        self.timing: Timing | None = None

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.first:
            self.watch.start()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx + 1 == trainer.max_steps:
            self.timing = self.watch.stop()


def ours(module: LanguageModule, data: TokenBatch, size: Size) -> Timing:
    """Time a block of training by Lightning, which moves the module back to the CPU afterwards."""
    steps = _Steps(Stopwatch(size.device), size.warm_up)
    device = torch.device(size.device)
    trainer = L.Trainer(
        accelerator="gpu" if device.type == "cuda" else "cpu",
        devices=[device.index or 0] if device.type == "cuda" else 1,
        precision="bf16-mixed" if size.half else "32-true",
        max_steps=size.warm_up + size.steps,
        gradient_clip_val=CLIP,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        callbacks=[steps],
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")  # nothing is validated, and parts stay frozen
        trainer.fit(module, repeat(data, trainer.max_steps))
    assert steps.timing is not None
    return steps.timing


def plain_loop(model: torch.nn.Module, forward: Callable[..., Any], data: TokenBatch, size: Size) -> Timing:
    """Time a block of training as you would write it by hand; ``forward`` is the model, perhaps compiled."""
    watch = Stopwatch(size.device)
    model.to(size.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(size.warm_up + size.steps):
        if step == size.warm_up:
            watch.start()
        ids = data.input_ids.to(size.device)
        with size.autocast():
            loss = forward(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    timing = watch.stop()
    model.to("cpu")
    return timing


def sides(size: Size) -> Iterator[tuple[str, Side]]:
    """Yield the name and the side of everything that is measured, in that order; the plain loop comes first.

    Compiled sides come last, since a compilation takes longer than all eager sides together. Only the compiled plain
    loop comes second, since the others are compared with it.
    """
    everywhere = batch(0, size.length, rows=size.rows, length=size.length, vocabulary=size.vocabulary)
    quarter = batch(12, 4, rows=size.rows, length=size.length, vocabulary=size.vocabulary)
    on_gpu = torch.device(size.device).type == "cuda"
    backends = (False, size.compile) if size.compile else (False,)
    for backend in backends:
        name = f"{PLAIN}, compiled" if backend else PLAIN
        key = "plain_compiled" if backend else "plain"
        yield name, _plain(key, everywhere, size, backend)
    for backend in backends:
        suffix = ", compiled" if backend else ""
        key_suffix = "_compiled" if backend else ""
        asked = size.asked if backend or not size.compile else {}
        for name, key, data in (("BC", "bc", everywhere), ("BC, a quarter action tokens", "bc_quarter", quarter)):
            yield name + suffix, _ours(BC, key + key_suffix, data, size, backend, asked.get("BC", ""))
        for mix, key, data in (
            ("a quarter action tokens", "ilql_quarter", quarter),
            ("action tokens only", "ilql", everywhere),
        ):
            name = f"ILQL, {mix}{suffix}"
            side = _ours(ILQL, key + key_suffix, data, size, backend, asked.get("ILQL", ""))
            yield name, side
            if on_gpu:
                # Value heads are float32; the user chooses how exactly a GPU multiplies that.
                yield f"{name}, heads in TF32", side._replace(block=_in_tf32(side.block))


def plain_flops(model: Any, data: TokenBatch) -> int:
    """Return the FLOPs of a step of a language model whose loss is on all tokens."""
    everywhere = data.input_ids.flatten()
    return lm_cost(model).of_batch(data._replace(row=everywhere))


def _plain(key: str, data: TokenBatch, size: Size, backend: bool | str) -> Side:
    """Return the side of the plain loop. The model is built when the first block begins."""

    @cache
    def built() -> tuple[torch.nn.Module, Callable[..., Any]]:
        model = build_lm(None, size.architecture(), size.vocabulary)
        if not backend:
            return model, model
        return model, torch.compile(model, backend="inductor" if backend is True else backend)

    tokens = size.rows * size.length
    return Side(key, lambda: plain_loop(*built(), data, size), tokens, lambda: plain_flops(built()[0], data))


def _ours(kind: type[LanguageModule], key: str, data: TokenBatch, size: Size, backend: bool | str, asked: str) -> Side:
    """Return the side of a module's training. The module is built when the first block begins."""

    @cache
    def built() -> LanguageModule:
        module = kind(architecture=size.architecture(), compile=backend)
        module.starts_from_bc = False  # random weights are as fast as learned ones
        return module

    tokens = size.rows * size.length
    return Side(key, lambda: ours(built(), data, size), tokens, lambda: built().step_cost().of_batch(data), asked)


def _in_tf32(block: Callable[[], Timing]) -> Callable[[], Timing]:
    def in_tf32() -> Timing:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return block()
        finally:
            torch.set_float32_matmul_precision(before)

    return in_tf32


def run(size: Size = CPU, only: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows for `python -m benchmarks`, those of a side as soon as its last round is over.

    Args:
        size: of the model and its batch.
        only: keys of the sides to measure, in addition to the plain loop; none: all.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    torch.manual_seed(0)
    measured = picked(dict(sides(size)), only)
    best = peak(size.device, size.half, 4_096 if torch.device(size.device).type == "cuda" else 1_024)
    yield Row(f"{size.label}, peak: {best.source}", best.flops / 1e12, "TFLOP/s", digits=3)
    blocks: dict[str, list[Timing]] = {name: [] for name in measured}
    # If compilation gave up, the steps would silently run uncompiled.
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for number in range(size.rounds):
            for name, side in measured.items():
                blocks[name].append(side.block())
                if number == size.rounds - 1:
                    yield from _rows(name, side, blocks, size, best.flops)


def picked(every: dict[str, Side], only: Sequence[str]) -> dict[str, Side]:
    """Return the sides with these keys, and the plain loop, which the others are compared with.

    Raises:
        UserError: a key that no side has.
    """
    keys = [side.key for side in every.values()]
    for key in only:
        if key not in keys:
            raise UserError(f"unknown side {key!r} of training; known: {', '.join(keys)}")
    if not only:
        return every
    return {name: side for name, side in every.items() if side.key in ("plain", *only)}


def _rows(name: str, side: Side, blocks: dict[str, list[Timing]], size: Size, best: float) -> Iterator[Row]:
    """Yield the figures of a side once all its blocks have been measured."""
    its = blocks[name]
    title = f"{size.label}, training, {name}"
    seconds = median(block.seconds for block in its) / size.steps
    yield Row(title, side.tokens / seconds, "tokens/s", "higher")
    yield Row(f"{title}, MFU", 100 * side.flops() / seconds / best, "% of peak", "higher", side.asked, 1)
    for plain, label in ((PLAIN, "the plain loop"), (f"{PLAIN}, compiled", "the compiled plain loop")):
        if plain not in blocks or name in (PLAIN, plain):
            continue
        faster = median(theirs.seconds / block.seconds for block, theirs in zip(its, blocks[plain], strict=True))
        yield Row(f"{title}, tokens/s by those of {label}", faster, "x", "higher", digits=2)
    memory = [block.memory for block in its if block.memory is not None]
    if memory:
        yield Row(f"{title}, peak memory", median(memory) / 1e9, "GB", "lower", digits=2)
