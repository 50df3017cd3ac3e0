"""Batches of segments of similar length, so that little of a batch is padding."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from torch.utils.data import BatchSampler, Sampler

__all__ = ["LengthBatches"]


class LengthBatches(BatchSampler):
    """Sorts by length within pools that are drawn at random, and shuffles the batches.

    Every item comes once an epoch. Which items meet in a batch is chance among those of similar length: each epoch
    draws other pools. A batch that is not full is as likely to hold short items as long ones.

    Args:
        sampler: gives the items in the order of this epoch; Lightning replaces it by one for each rank.
        batch_size: items in a batch.
        drop_last: leave out the batch that is not full.
        lengths: of all items.
        pool: batches in a pool. The more, the less padding; 1 leaves batches as they are drawn.
    """

    def __init__(
        self, sampler: Sampler[int] | Iterable[int], batch_size: int, drop_last: bool, lengths: Sequence[int], pool: int
    ) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.lengths = lengths
        self.pool = pool
        #: Batches that the next epoch leaves out at its beginning: those that a run has learned from already.
        self.skip = 0

    def __iter__(self) -> Iterator[list[int]]:
        skip, self.skip = self.skip, 0
        yield from islice(super().__iter__() if self.pool == 1 else self._sorted(), skip, None)

    def _sorted(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        # The order of the items is where this epoch's chance comes from, on each rank its own.
        chance = np.random.default_rng(order[:32])
        size = self.pool * self.batch_size
        batches: list[list[int]] = []
        for first in range(0, len(order), size):
            batches += self._cut(sorted(order[first : first + size], key=self.lengths.__getitem__), chance)
        for index in chance.permutation(len(batches)):
            if not self.drop_last or len(batches[index]) == self.batch_size:
                yield batches[index]

    def _cut(self, pool: list[int], chance: np.random.Generator) -> list[list[int]]:
        """Full batches, and at a random place the one that is not."""
        full, rest = divmod(len(pool), self.batch_size)
        sizes = [self.batch_size] * full
        if rest:
            sizes.insert(int(chance.integers(full + 1)), rest)
        ends = np.cumsum(sizes).tolist()
        return [pool[end - size : end] for end, size in zip(ends, sizes, strict=True)]
