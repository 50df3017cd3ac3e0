"""A loader that goes on in the middle of an epoch."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from lmrl.batch import TokenBatch
from lmrl.datamodules.by_length import LengthBatches

__all__ = ["ResumableLoader"]


class ResumableLoader(DataLoader[TokenBatch]):
    """Knows how far an epoch has come; Lightning keeps that in checkpoints and hands it back.

    A run that goes on reads what was left of its epoch, and draws the epochs after it, as if it had never been
    interrupted. It goes on with as many processes as it had. Its `batch_sampler` has to be a `LengthBatches`.
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
    def _batches(self) -> LengthBatches:
        return cast(LengthBatches, self.batch_sampler)

    def _generator(self) -> torch.Generator | None:
        """Of the order; none where several processes draw it from the number of the epoch."""
        return getattr(self._batches.sampler, "generator", None)

    def _chance(self) -> Tensor | None:
        generator = self._generator()
        return None if generator is None else generator.get_state()
