"""Before a training begins: what it starts from, and how its forward passes are made."""

from typing import Any

import torch

from lmrl.decoding.reader import backend_of
from lmrl.errors import UserError
from lmrl.models.lm import RowReader, read_rows

__all__ = ["check_start", "compiled_reader"]


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


def check_start(module: Any) -> None:
    """Make sure that an algorithm which starts from a BC run has one, unless a run goes on.

    Raises:
        UserError: it has none.
    """
    if module.starts_from_bc and module.hparams["pretrained"] is None and module.trainer.ckpt_path is None:
        task = module.made_with.get("task", "TASK")
        raise UserError(
            f"{type(module).__name__} starts from a BC run: give model.init_args.pretrained (for example "
            f"runs/{task}/bc, made by: lmrl fit --config configs/{task}/bc.yaml)"
        )
