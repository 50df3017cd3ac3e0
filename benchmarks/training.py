"""Training: tokens per second, MFU and peak memory of BC and ILQL, beside a plain loop around the same model.

Ours is what ``lmrl fit`` runs: Lightning's trainer with the module's training step, its optimizer, and gradients
clipped at 1. The plain loop is `transformers`' model with its own loss on all tokens, AdamW (fused) and the same
clipping, on the same batch. A row of the batch is all action tokens, so that BC has as much to do as the plain loop, or
a quarter of it is (turns of 12 and 4 tokens), as in dialogues. Tokens are those that are read.

Blocks of steps alternate between the sides, each after a few steps that are not counted (compilation is among them);
each figure is the median of the blocks. The FLOPs of MFU are those of `benchmarks.flops`.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from itertools import repeat
from statistics import median
from typing import Any, NamedTuple

import lightning as L
import torch

from benchmarks import flops
from benchmarks.device import Stopwatch, Timing, peak
from benchmarks.row import Row
from benchmarks.size import CPU, Size
from benchmarks.training_step import batch
from lmrl.models.lm import build_lm
from lmrl.modules import BC, ILQL, LanguageModule
from lmrl.tokens.collate import TokenBatch

__all__ = ["run"]

CLIP = 1.0
PLAIN = "plain loop"


class Side(NamedTuple):
    """What is measured, in a block of steps at a time."""

    block: Callable[[], Timing]
    tokens: int
    """Read in a step."""
    flops: int
    """Of a step."""
    asked: str = ""
    """Of its MFU."""


class _Steps(L.Callback):
    """Has a stopwatch run from a step on to the last one."""

    def __init__(self, watch: Stopwatch, first: int) -> None:
        self.watch, self.first = watch, first
        self.timing: Timing | None = None

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.first:
            self.watch.start()

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx + 1 == trainer.max_steps:
            self.timing = self.watch.stop()


def ours(module: LanguageModule, data: TokenBatch, size: Size) -> Timing:
    """A block of training by Lightning. Afterwards it moves the module back to the processor."""
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
        warnings.filterwarnings("ignore", module="lightning")  # that nothing is validated, that parts stay frozen
        trainer.fit(module, repeat(data, trainer.max_steps))
    assert steps.timing is not None
    return steps.timing


def plain_loop(model: torch.nn.Module, forward: Callable[..., Any], data: TokenBatch, size: Size) -> Timing:
    """A block of training as one writes it by hand; ``forward`` is the model, perhaps compiled."""
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
    """Everything that is measured, by name; the plain loop comes first."""
    mixes = {
        "action tokens only": batch(0, size.length, rows=size.rows, length=size.length, vocabulary=size.vocabulary),
        "a quarter action tokens": batch(12, 4, rows=size.rows, length=size.length, vocabulary=size.vocabulary),
    }
    everywhere, tokens = mixes["action tokens only"], size.rows * size.length
    for backend in (False, size.compile) if size.compile else (False,):
        said, asked = (", compiled", size.asked) if backend else ("", {} if size.compile else size.asked)
        yield PLAIN + said, Side(_plain(everywhere, size, backend), tokens, flops.plain(size, everywhere))
        module = _module(BC, size, backend)
        wanted = asked.get("BC", "")
        yield f"BC{said}", Side(_ours(module, everywhere, size), tokens, flops.bc(size, everywhere), wanted)
        module = _module(ILQL, size, backend)
        for name, data in mixes.items():
            count, wanted = flops.ilql(size, data), asked.get("ILQL", "")
            yield f"ILQL, {name}{said}", Side(_ours(module, data, size), tokens, count, wanted)
            if torch.device(size.device).type == "cuda":
                # Value heads are float32; how exactly a GPU multiplies that is for the user to choose.
                block = _in_tf32(_ours(module, data, size))
                yield f"ILQL, {name}{said}, heads in TF32", Side(block, tokens, count, wanted)


def _plain(data: TokenBatch, size: Size, backend: bool | str) -> Callable[[], Timing]:
    model = build_lm(None, size.architecture(), size.vocabulary)
    forward = torch.compile(model, backend="inductor" if backend is True else backend) if backend else model
    return lambda: plain_loop(model, forward, data, size)


def _module(kind: type[LanguageModule], size: Size, backend: bool | str) -> LanguageModule:
    module = kind(architecture=size.architecture(), compile=backend)
    module.starts_from_bc = False  # random weights are as fast as learned ones
    return module


def _ours(module: LanguageModule, data: TokenBatch, size: Size) -> Callable[[], Timing]:
    return lambda: ours(module, data, size)


def _in_tf32(block: Callable[[], Timing]) -> Callable[[], Timing]:
    def in_tf32() -> Timing:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return block()
        finally:
            torch.set_float32_matmul_precision(before)

    return in_tf32


def run(size: Size = CPU) -> Iterator[Row]:
    """Rows for `python -m benchmarks`."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    torch.manual_seed(0)
    best = peak(size.device, size.half, 4_096 if torch.device(size.device).type == "cuda" else 1_024)
    yield Row(f"{size.label}, peak: {best.source}", best.flops / 1e12, "TFLOP/s", digits=3)
    measured = dict(sides(size))
    blocks: dict[str, list[Timing]] = {name: [] for name in measured}
    # Compilation that gives up would go on uncompiled without a word.
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for _ in range(size.rounds):
            for name, side in measured.items():
                blocks[name].append(side.block())
    for name, side in measured.items():
        yield from _rows(f"{size.label}, training, {name}", size, side, blocks[name], blocks[PLAIN], best.flops)


def _rows(name: str, size: Size, side: Side, blocks: list[Timing], plain: list[Timing], best: float) -> Iterator[Row]:
    seconds = median(block.seconds for block in blocks) / size.steps
    yield Row(name, side.tokens / seconds, "tokens/s", "higher")
    yield Row(f"{name}, MFU", 100 * side.flops / seconds / best, "% of peak", "higher", side.asked, 1)
    if blocks is not plain:
        faster = median(theirs.seconds / block.seconds for block, theirs in zip(blocks, plain, strict=True))
        yield Row(f"{name}, tokens/s by those of the plain loop", faster, "x", "higher", digits=2)
    memory = [block.memory for block in blocks if block.memory is not None]
    if memory:
        yield Row(f"{name}, peak memory", median(memory) / 1e9, "GB", "lower", digits=2)
