"""One process at a time in a folder: a lock beside it, which goes with the process that holds it."""

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from lmrl.errors import UserError

__all__ = ["locked"]


@contextmanager
def locked(folder: str | os.PathLike[str], what: str = "folder", kind: str = "", wait: float = 0.0) -> Iterator[None]:
    """Inside the block no other process that asks for the same lock writes into the folder.

    The lock is a file ``.NAME.lock`` beside the folder (which may be moved, replaced or not there yet). The system
    frees it when its holder ends, however that comes about; the file that a killed one leaves means nothing.

    Args:
        folder: that is written.
        what: what the folder is, for the message.
        kind: of several locks of a folder; those of other kinds do not matter to this one.
        wait: seconds to wait for a process that holds it.

    Raises:
        UserError: another process holds it; the message names that process, its machine, command and beginning.
    """
    path = Path(os.path.realpath(folder))
    file = path.with_name(f".{path.name}.{kind}.lock" if kind else f".{path.name}.lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()  # where nothing can be written, filelock would say that another holds it
    lock = FileLock(file)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise UserError(
            f"the {what} {os.fspath(folder)} is in use by {_holder(file)}; wait until it ends, or use another folder"
        ) from None
    try:
        file.write_text(json.dumps(_this_process()), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):  # Windows deletes no open file
            file.unlink()  # whoever has it open sees that it has no name any more, and begins anew
        lock.release()


def _this_process() -> dict[str, str | int]:
    now = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return {"pid": os.getpid(), "host": socket.gethostname(), "command": command[:200], "since": now}


def _holder(file: Path) -> str:
    """What the holder of a lock has noted about itself."""
    try:
        noted = json.loads(file.read_text(encoding="utf-8"))
        return f"process {noted['pid']} on {noted['host']} since {noted['since']} ({noted['command']})"
    except (OSError, ValueError, TypeError, KeyError):  # it has taken the lock this very moment
        return "another process"
