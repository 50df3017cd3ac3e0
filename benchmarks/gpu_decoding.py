"""Playing at GPT-2 small size, as it is on a GPU: 12 layers of width 768, 50,257 words, 256 slots, bfloat16."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks import decoding
from benchmarks.row import Row
from benchmarks.size import GPU, TINY

__all__ = ["run"]


def run(device: str = "cuda", tiny: bool = False, only: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of `benchmarks.decoding`.

    Args:
        device: as torch calls it.
        tiny: at a size that only shows that everything runs.
        only: parts to measure; none: all.
    """
    yield from decoding.run(replace(TINY if tiny else GPU, device=device), only)
