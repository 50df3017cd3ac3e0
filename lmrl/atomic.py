"""Files that appear complete or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing"]


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
