"""A loader that goes on in the middle of an epoch."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler

from lmrl.batch import TokenBatch

__all__ = ["ResumableBatches", "ResumableLoader"]


class ResumableBatches(BatchSampler):
    """Batches of items in the order of a sampler, of which the first may be left out.

    Args:
        sampler: gives the items in the order of this epoch; Lightning replaces it by one for each rank.
        batch_size: items in a batch.
        drop_last: leave out the batch that is not full.
        seed: of the order, where Lightning shares it out among processes.
    """

    def __init__(self, sampler: Sampler[int] | Iterable[int], batch_size: int, drop_last: bool, seed: int = 0) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.seed = seed
        #: Batches that the next epoch leaves out at its beginning: those that a run has learned from already.
        self.skip = 0

    def __iter__(self) -> Iterator[list[int]]:
        skip, self.skip = self.skip, 0
        yield from islice(super().__iter__(), skip, None)


class ResumableLoader(DataLoader[TokenBatch]):
    """Knows how far an epoch has come; Lightning keeps that in checkpoints and hands it back.

    A run that goes on reads what was left of its epoch, and draws the epochs after it, as if it had never been
    interrupted. It goes on with as many processes as it had. Its `batch_sampler` has to be a `ResumableBatches`.
    """

    _epoch, _seen = -1, 0
    _began: Tensor | None = None
    _restored: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[TokenBatch]:  # type: ignore[override]
        """The batches of an epoch, or those that are left of it."""
        self._restored = None
        self._epoch += 1
        self._seen, self._began = self._batches.skip, self._chance()
        if isinstance(self._batches.sampler, DistributedSampler):  # Lightning counts a run that ends as an epoch
            self._batches.sampler.seed = self._batches.seed
            self._batches.sampler.set_epoch(self._epoch)
        for batch in super().__iter__():
            self._seen += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """The number of the epoch, how many of its batches were handed out, and chance as it was before it."""
        if self._restored is not None:  # nothing has happened since
            return self._restored
        if self._epoch < 0 or self._seen == len(self):  # the next one is about to begin
            return {"epoch": self._epoch + 1, "seen": 0, "chance": self._chance()}
        return {"epoch": self._epoch, "seen": self._seen, "chance": self._began}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next epoch be the one in which a run was saved, and begin there."""
        self._restored = state_dict
        self._epoch, self._batches.skip = int(state_dict["epoch"]) - 1, int(state_dict["seen"])
        generator, chance = self._generator(), state_dict["chance"]
        if generator is not None and chance is not None:
            generator.set_state(chance)

    @property
    def _batches(self) -> ResumableBatches:
        return cast(ResumableBatches, self.batch_sampler)

    def _generator(self) -> torch.Generator | None:
        """Of the order; none where several processes draw it from the number of the epoch."""
        return getattr(self._batches.sampler, "generator", None)

    def _chance(self) -> Tensor | None:
        generator = self._generator()
        return None if generator is None else generator.get_state()
