"""Files and folders that appear complete or not at all, locks on folders, and JSON that is checked as it is read."""

import ctypes
import errno
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from lmrl.errors import UserError, in_one_line, valid_unicode, without_secrets

__all__ = [
    "check_may_replace",
    "in_place_of",
    "json_of_file",
    "locked",
    "parse_json",
    "remove",
    "replace",
    "replacing",
    "replacing_folder",
]

# of linux/fcntl.h and linux/fs.h
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
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
    with in_place_of(path, temporary):
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


@contextmanager
def in_place_of(path: Path, temporary: Path) -> Iterator[None]:
    """Let errors about a temporary file name the file that it would replace, which is the one that the user knows."""
    try:
        yield
    except OSError as error:
        if str(temporary) in (str(error.filename), str(error.filename2)):
            error.filename = str(path)
            error.filename2 = None
        raise


def check_may_replace(
    folder: str | os.PathLike[str],
    own: Collection[str],
    what: str,
    written: Collection[str] | None = None,
    inputs: Iterable[str | os.PathLike[str]] = (),
) -> None:
    """Make sure that a command deletes and replaces nothing but what such a command has made before.

    Every command that writes a folder asks this before it begins.

    Args:
        folder: the target; it need not exist.
        own: names of entries that an earlier command of this kind has made there, as far as the folder proves it.
        what: the command makes, for the message: ``evaluation``.
        written: names of the entries that the command writes or deletes; None: it replaces the folder as a whole.
        inputs: files and folders that the command reads. The folder must not be one of them, nor hold one.

    Raises:
        UserError: the folder is a file, is or holds an input, or has an entry that would be lost; it names the entry.
    """
    folder = Path(folder)
    if not (folder.exists() or folder.is_symlink()):
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name a new one for the {what}")
    for source in inputs:
        if Path(os.path.realpath(source)).is_relative_to(os.path.realpath(folder)):
            raise UserError(f"{folder} is or holds {source}, from which the {what} is made; name another folder")
    present = sorted(entry.name for entry in folder.iterdir())
    foreign = [name for name in present if name not in own and (written is None or name in written)]
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise UserError(
            f"{folder} holds {foreign[0]}{more}, which no {what} has made and which would be lost; name another "
            "folder, or move that away"
        )


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

    It is ``.NAME.new`` next to it. An exception leaves ``folder`` as it was; what a killed process has left is removed
    by the next one. Two processes must not replace one folder at once (`lmrl.utils.files`). See `replace`.

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


@contextmanager
def locked(folder: str | os.PathLike[str], what: str = "folder", kind: str = "", wait: float = 0.0) -> Iterator[None]:
    """Inside the block no other process that asks for the same lock writes into the folder.

    The lock is a file ``.NAME.lock`` next to the folder (which may be moved, replaced or not there yet). The system
    frees it when its holder ends, however that comes about; the file that a killed one leaves means nothing.

    Args:
        folder: that is written.
        what: what the folder is, for the message.
        kind: of several locks of a folder; those of other kinds do not matter to this one.
        wait: seconds to wait for a process that holds it; negative: until it ends.

    Raises:
        UserError: another process holds it; the message names that process, its machine, command and beginning.
    """
    path = Path(os.path.realpath(folder))
    file = path.with_name(f".{path.name}.{kind}.lock" if kind else f".{path.name}.lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    # It names a command, so only its owner may read it. Where nothing can be written, touching fails with the reason,
    # where filelock would say that another process holds the lock.
    file.touch(mode=0o600)
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
    command = shlex.join([Path(sys.argv[0]).name, *without_secrets(sys.argv[1:])])
    return {"pid": os.getpid(), "host": socket.gethostname(), "command": command[:200], "since": now}


def _holder(file: Path) -> str:
    """Return the note that the holder of a lock has left about itself."""
    try:
        noted = json.loads(file.read_text(encoding="utf-8"))
        return f"process {noted['pid']} on {noted['host']} since {noted['since']} ({noted['command']})"
    except (OSError, ValueError, TypeError, KeyError):  # it has taken the lock this very moment
        return "another process"


_DEEPEST = 100
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a character beyond 16 bits: without its other half, no text."""


def parse_json(text: bytes | str, where: str, mend: bool = False) -> Any:
    """The value of a JSON text in UTF-8.

    Args:
        text: of a file, of one line of it, or of an answer.
        where: file and place, for the message.
        mend: put U+FFFD in place of half a character, which is else refused.

    Raises:
        UserError: it is not UTF-8 or not JSON, is nested more than 100 deep, holds a whole number of more digits than
            Python reads (4,300), or half a character.
    """
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(decoded)
    except RecursionError as error:
        raise UserError(f"{where}: not valid JSON (nested more than {_DEEPEST} deep)") from error
    except ValueError as error:  # among them those of JSON, of UTF-8 and of long numbers
        raise UserError(f"{where}: not valid JSON ({in_one_line(error)})") from error
    if decoded.count("[") + decoded.count("{") > _DEEPEST and _depth(value) > _DEEPEST:
        raise UserError(f"{where}: not valid JSON (nested more than {_DEEPEST} deep)")
    if _HALF.search(decoded) and mend:
        return _mended(value)
    if _HALF.search(decoded) and not _is_unicode(value):
        raise UserError(f"{where}: not valid JSON (holds half a character, such as \\ud83d, which is no Unicode)")
    return value


def json_of_file(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    found = parse_json(path.read_bytes(), str(path))
    if not isinstance(found, dict):
        raise UserError(f"{path}: must hold a JSON object, got {type(found).__name__}")
    return found


def _depth(value: Any) -> int:
    deepest = 0
    waiting = [(value, 0)]
    while waiting:
        found, depth = waiting.pop()
        deepest = max(deepest, depth)
        waiting += [(inner, depth + 1) for inner in _children(found)]
    return deepest


def _children(value: Any) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())


def _mended(value: Any) -> Any:
    """A value of JSON, at most 100 deep, all of whose texts are valid Unicode."""
    if isinstance(value, dict):
        return {valid_unicode(name): _mended(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_mended(inner) for inner in value]
    return valid_unicode(value) if isinstance(value, str) else value


def _is_unicode(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
