"""Reading checkpoints without running what is in them."""

import struct
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch

from lmrl.errors import UserError, in_one_line
from lmrl.models.shards import check_plain, is_sharded_checkpoint, read_shards

__all__ = ["check_archive", "check_checkpoint", "is_checkpoint", "read_checkpoint", "steps_of", "unreadable"]


def is_checkpoint(path: Path) -> bool:
    """Whether there is a checkpoint: a file, or a folder of shards."""
    return path.is_file() or is_sharded_checkpoint(path)


def read_checkpoint(file: Path, allow_pickle: bool = False, *, weights: bool = False) -> dict[str, Any]:
    """The content of a checkpoint, its tensors on the disk until they are used.

    Args:
        file: of a run, or a folder of shards; ours hold tensors and plain values only.
        allow_pickle: also read one that holds other objects. That can run any code: only for files that you trust.
        weights: of a folder of shards, also read the weights (never the optimizer); a file is read as a whole.

    Raises:
        UserError: if it is damaged, holds pickled objects and that was not allowed, or is something else.
    """
    try:
        content = _content(file, weights, allow_pickle)
        if not isinstance(content["lmrl"], dict):  # what makes it ours
            raise TypeError(f"its entry 'lmrl' must be a dict, got {type(content['lmrl']).__name__}")
    except Exception as error:  # unpickling a file that is something else can end in any exception
        raise unreadable(file, error) from error
    return content


def steps_of(file: Path, allow_pickle: bool = False) -> int:
    """After how many optimizer steps a checkpoint of Lightning was written, also one of another module than ours.

    Raises:
        UserError: as `read_checkpoint`.
    """
    try:
        return int(_content(file, False, allow_pickle)["global_step"])
    except Exception as error:
        raise unreadable(file, error) from error


def _content(file: Path, weights: bool, allow_pickle: bool) -> dict[str, Any]:
    if file.is_dir():
        check_archive(file / "meta.pt")
        return read_shards(file, weights=weights, allow_pickle=allow_pickle)
    check_archive(file)
    content: dict[str, Any] = torch.load(file, map_location="cpu", mmap=True, weights_only=not allow_pickle)
    return content


def check_archive(file: Path) -> None:
    """Make sure that a checkpoint in one file is what was written, by the checksums of its parts, which torch ignores.

    Raises:
        UserError: naming the part that is damaged.
    """
    try:
        with ZipFile(file) as archive:
            # What torch writes is not compressed: a small file cannot become a large one.
            if packed := [part.filename for part in archive.infolist() if part.compress_type != ZIP_STORED]:
                raise UserError(f"{file} is not a checkpoint of lmrl: its part {packed[0]!r:.80} is compressed")
            damaged = archive.testzip()
    except (BadZipFile, ValueError, EOFError, NotImplementedError, OverflowError, struct.error) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file} is not a checkpoint of lmrl, or is damaged ({in_one_line(error)})") from error
    if damaged is not None:
        raise UserError(f"{file} is damaged: its part {damaged!r:.80} is not what was written")


def check_checkpoint(path: Path, allow_pickle: bool) -> None:
    """Make sure that a checkpoint is whole, and that a folder of shards may be read; single files say so themselves.

    Raises:
        UserError: there is no checkpoint, it is damaged, or it holds pickled objects and that was not allowed.
    """
    if not is_checkpoint(path):
        raise UserError(f"ckpt_path must be a checkpoint file or a folder of shards, there is none at {str(path)!r}")
    if not path.is_dir():
        check_archive(path)
    elif not allow_pickle:
        try:
            check_plain(path)
        except Exception as error:
            raise unreadable(path, error) from error


def unreadable(file: object, error: Exception) -> UserError:
    """What to say about a file that could not be read: it holds objects, or is no checkpoint."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, UnpicklingError) and "GLOBAL" in str(error):
        return UserError(
            f"{file} holds pickled objects, which can run any code when they are read; if you trust where it comes "
            "from, say so with allow_pickle (--allow_pickle)"
        )
    said = f"{type(error).__name__}: {in_one_line(error)}"
    said = "no weights and plain values" if isinstance(error, UnpicklingError) else said
    return UserError(f"{file} is not a checkpoint of lmrl, or is damaged ({said})")
