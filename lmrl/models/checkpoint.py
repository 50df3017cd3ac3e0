"""Reading checkpoints without running what is in them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryFile
from typing import IO, Any

import torch

from lmrl.errors import UserError
from lmrl.models.shards import check_plain, is_sharded_checkpoint, read_shards

__all__ = ["check_checkpoint", "in_one_file", "is_checkpoint", "read_checkpoint", "unreadable"]


def is_checkpoint(path: Path) -> bool:
    """Whether there is a checkpoint: a file, or a folder of shards."""
    return path.is_file() or is_sharded_checkpoint(path)


def read_checkpoint(file: Path, allow_pickle: bool = False) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU; of one in shards all but the tensors.

    Args:
        file: of a run, or a folder of shards; ours hold tensors and plain values only.
        allow_pickle: also read one that holds other objects. That can run any code: only for files that you trust.

    Raises:
        UserError: if it holds pickled objects and that was not allowed, or is something else.
    """
    try:
        if file.is_dir():
            content = read_shards(file, weights=False, allow_pickle=allow_pickle)
        else:
            content = torch.load(file, map_location="cpu", weights_only=not allow_pickle)
        content["lmrl"]  # what makes it ours
    except Exception as error:  # unpickling a file that is something else can end in any exception
        raise unreadable(file, error) from error
    return content


@contextmanager
def in_one_file(path: Path, allow_pickle: bool = False) -> Iterator[Path | IO[bytes]]:
    """A checkpoint as one file: itself, or a temporary one for a folder of shards (without optimizer).

    Raises:
        UserError: as `read_checkpoint`.
    """
    if not path.is_dir():
        yield path
        return
    try:
        content = read_shards(path, weights=True, allow_pickle=allow_pickle)
    except Exception as error:
        raise unreadable(path, error) from error
    with TemporaryFile(dir=path.parent) as file:
        torch.save(content, file)
        del content
        file.seek(0)
        yield file


def check_checkpoint(path: Path, allow_pickle: bool) -> None:
    """Make sure that a folder of shards may be read by whoever goes on from it; single files say so themselves.

    Raises:
        UserError: there is no checkpoint, or it holds pickled objects and that was not allowed.
    """
    if not is_checkpoint(path):
        raise UserError(f"ckpt_path must be a checkpoint file or a folder of shards, there is none at {str(path)!r}")
    if path.is_dir() and not allow_pickle:
        try:
            check_plain(path)
        except Exception as error:
            raise unreadable(path, error) from error


def unreadable(file: object, error: Exception) -> UserError:
    """What to say about a file that could not be read: it holds objects, or is no checkpoint."""
    if isinstance(error, UnpicklingError) and "GLOBAL" in str(error):
        return UserError(
            f"{file} holds pickled objects, which can run any code when they are read; if you trust where it comes "
            "from, say so with allow_pickle (--allow_pickle)"
        )
    return UserError(f"{file} is not a checkpoint of lmrl: {type(error).__name__}: {error}")
