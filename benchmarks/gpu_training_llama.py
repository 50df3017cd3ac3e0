"""Training at the size of SmolLM2-135M, a Llama of 30 layers of width 576, as `benchmarks.gpu_training` does it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks import training
from benchmarks.row import Row
from benchmarks.size import GPU_LLAMA, TINY_LLAMA

__all__ = ["run"]


def run(device: str = "cuda", tiny: bool = False, only: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of `benchmarks.training`.

    Args:
        device: as torch calls it.
        tiny: at a size that only shows that everything runs.
        only: keys of the sides to measure; none: all.
    """
    yield from training.run(replace(TINY_LLAMA if tiny else GPU_LLAMA, device=device), only)
