"""Forward passes of training, perhaps compiled."""

import torch

from lmrl.decoding.reader import backend_of
from lmrl.models.lm import RowReader, read_rows

__all__ = ["compiled_reader"]


def compiled_reader(choice: bool | str) -> RowReader:
    """What reads the rows of a batch: `lmrl.models.lm.read_rows`, compiled where a backend is chosen.

    Raises:
        UserError: torch has no such backend.
    """
    backend = backend_of(choice)
    if backend is None:
        return read_rows
    compiled: RowReader = torch.compile(read_rows, dynamic=True, backend=backend)
    return compiled
