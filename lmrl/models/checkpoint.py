"""Reading checkpoints without running what is in them."""

from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from lmrl.errors import UserError

__all__ = ["read_checkpoint", "unreadable"]


def read_checkpoint(file: Path, allow_pickle: bool = False) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU.

    Args:
        file: of a run; ours hold tensors and plain values only.
        allow_pickle: also read one that holds other objects. That can run any code: only for files that you trust.

    Raises:
        UserError: if it holds pickled objects and that was not allowed, or is something else.
    """
    try:
        content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=not allow_pickle)
        content["lmrl"]  # what makes it ours
    except Exception as error:  # unpickling a file that is something else can end in any exception
        raise unreadable(file, error) from error
    return content


def unreadable(file: object, error: Exception) -> UserError:
    """What to say about a file that could not be read: it holds objects, or is no checkpoint."""
    if isinstance(error, UnpicklingError) and "GLOBAL" in str(error):
        return UserError(
            f"{file} holds pickled objects, which can run any code when they are read; if you trust where it comes "
            "from, say so with allow_pickle (--allow_pickle)"
        )
    return UserError(f"{file} is not a checkpoint of lmrl: {type(error).__name__}: {error}")
