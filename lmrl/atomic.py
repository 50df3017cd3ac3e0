"""Files and folders that appear complete or not at all."""

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lmrl.errors import UserError

__all__ = ["remove", "replace", "replacing", "replacing_folder"]

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of linux/fcntl.h and linux/fs.h
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the place of ``path`` when the block ends without an exception.

    Until then ``path`` keeps its old content (or does not exist). Missing folders are made. An exception leaves nothing
    behind. Neither does a killed process where the file system knows files without a name (Linux); elsewhere a
    hidden ``.NAME.*.tmp`` may stay.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    unnamed = _unnamed(path.parent)
    try:
        with unnamed or temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if unnamed is not None:
                # Naming a directory descriptor is what makes `os.link` follow the link under /proc.
                os.link(f"/proc/self/fd/{file.fileno()}", temporary, src_dir_fd=file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _unnamed(folder: Path) -> BinaryIO | None:
    """A file in ``folder`` that the system forgets with the process, or None where there are none."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.fdopen(os.open(folder, flag | os.O_RDWR, 0o666), "w+b")
    except OSError:
        return None


@contextmanager
def replacing_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Hand out a new, empty folder that takes the place of ``folder`` when the block ends without an exception.

    It is ``.NAME.new`` beside it. An exception leaves ``folder`` as it was; what a killed process has left is removed
    by the next one. Two processes must not replace one folder at once (`lmrl.locks`). See `replace`.

    Raises:
        UserError: the folder is the working directory or holds it.
    """
    folder = Path(os.path.realpath(folder))
    if Path.cwd().is_relative_to(folder):
        raise UserError(f"{folder} is the working directory or holds it, and cannot be replaced; name a folder below")
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f".{folder.name}.new")
    _recover(folder)
    remove(new)
    new.mkdir()
    try:
        yield new
        replace(new, folder)
    finally:
        remove(new)


def replace(new: Path, path: Path) -> None:
    """Put a folder or file in the place of another; the old one is removed.

    At every instant ``path`` is the old or the new one: Linux exchanges two names in one step, and a file takes
    the place of a file in one step everywhere. Where names cannot be exchanged (other systems, some network file
    systems), a folder is for an instant not there and the old one is ``.NAME.old``; if the process is killed in that
    instant, the next one that replaces it puts it back first.
    """
    _recover(path)
    if not (new.is_dir() or path.is_dir()):
        new.replace(path)
    elif path.exists() and _exchange(new, path):
        remove(new)
    else:
        old = path.with_name(f".{path.name}.old")
        if path.exists():
            path.rename(old)
        new.rename(path)
        remove(old)


def remove(path: Path) -> None:
    """Delete a file or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _recover(path: Path) -> None:
    """Make good what a process left that was killed between two renames: the old one is back, or gone for good."""
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        old.rename(path)
    remove(old)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False where the system or the file system cannot."""
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if exchange is None:
        return False
    if exchange(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    error = ctypes.get_errno()
    if error in _NO_EXCHANGE:
        return False
    raise OSError(error, os.strerror(error), str(one), None, str(other))
