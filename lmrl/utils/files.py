"""Files and folders that appear complete or not at all, locks on folders, and JSON that is checked as it is read."""

import json
import os
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


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing that takes the place of ``path`` when the block ends without an exception.

    Until then ``path`` keeps its old content (or does not exist). Missing folders are made. An exception leaves nothing
    behind; a killed process may leave a hidden ``.NAME.*.tmp``.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A random name, so that two processes that write the same file do not mix their output. It is next to the target,
    # because only a rename within one file system is atomic.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with in_place_of(path, temporary):
        try:
            with temporary.open("xb") as file:
                yield file
                # Without this, a power failure could leave the new name with an empty file.
                file.flush()
                os.fsync(file.fileno())
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
    # A symbolic link without a target does not exist, but is in the way.
    if not (folder.exists() or folder.is_symlink()):
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name a new one for the {what}")
    for source in inputs:
        if Path(os.path.realpath(source)).is_relative_to(os.path.realpath(folder)):
            raise UserError(f"{folder} is or holds {source}, from which the {what} is made; name another folder")
    foreign = []
    for name in sorted(os.listdir(folder)):
        is_lost = written is None or name in written
        # A killed process may have left temporary files of `replacing`.
        is_temporary = name.startswith(".") and name.endswith(".tmp")
        if is_lost and name not in own and not is_temporary:
            foreign.append(name)
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise UserError(
            f"{folder} holds {foreign[0]}{more}, which no {what} has made and which would be lost; name another "
            "folder, or move that away"
        )


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

    A file replaces a file in one step. A folder replaces another in two renames: between them ``path`` does not exist
    and the old one is ``.NAME.old``. If the process is killed there, the next call restores the old one first.
    """
    _recover(path)
    if path.exists() and (path.is_dir() or new.is_dir()):
        # A folder with content cannot be overwritten by a rename, so the old one has to move away first.
        old = path.with_name(f".{path.name}.old")
        path.rename(old)
        new.rename(path)
        remove(old)
    else:
        new.replace(path)


def remove(path: Path) -> None:
    """Delete a file or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _recover(path: Path) -> None:
    """Clean up after a process that was killed in `replace`."""
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        old.rename(path)  # killed between the two renames: this is the only copy
    remove(old)


@contextmanager
def locked(folder: str | os.PathLike[str], what: str = "folder", kind: str = "", wait: float = 0.0) -> Iterator[None]:
    """Inside the block no other process that asks for the same lock writes into the folder.

    The lock is a file ``.NAME.lock`` next to the folder (which may be moved, replaced or not there yet). The system
    frees it when its holder ends, however that comes about; the file that a killed one leaves means nothing.

    Args:
        folder: folder that is written.
        what: what the folder is, for the message.
        kind: kind of lock; a folder may have several, and those of other kinds do not matter to this one.
        wait: seconds to wait for a process that holds it; negative: until it ends.

    Raises:
        UserError: another process holds it; the message names that process, its machine, command and beginning.
    """
    path = Path(os.path.realpath(folder))
    file = path.with_name(f".{path.name}.{kind}.lock" if kind else f".{path.name}.lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    # The file holds a command line, so only its owner may read it. Where nothing can be written, `touch` fails with the
    # reason, whereas filelock would report that another process holds the lock.
    try:
        file.touch(mode=0o600)
    except PermissionError as error:
        if not file.exists():
            raise
        raise UserError(
            f"the {what} {os.fspath(folder)} is in use by another user, or a command of theirs was killed: wait until "
            f"it ends, or remove {file}"
        ) from error
    lock = FileLock(file)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise UserError(
            f"the {what} {os.fspath(folder)} is in use by {_holder(file)}; wait until it ends, or use another folder"
        ) from None
    try:
        command = shlex.join([Path(sys.argv[0]).name, *without_secrets(sys.argv[1:])])
        note = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "command": command[:200],
            "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
        }
        file.write_text(json.dumps(note), encoding="utf-8")
        yield
    finally:
        with suppress(OSError):  # Windows does not delete open files
            file.unlink()  # a process that waits on this file notices that its name is gone and opens a new one
        lock.release()


def _holder(file: Path) -> str:
    """Describe the process that holds a lock, from the note it left in the file."""
    try:
        note = json.loads(file.read_text(encoding="utf-8"))
        return f"process {note['pid']} on {note['host']} since {note['since']} ({note['command']})"
    except (OSError, ValueError, TypeError, KeyError):  # it took the lock this very moment and has not written yet
        return "another process"


def parse_json(text: bytes | str, where: str, mend: bool = False) -> Any:
    """Return the value of a JSON text in UTF-8.

    Args:
        text: content of a file, of one line of it, or of an answer.
        where: file and place, for the message.
        mend: replace lone surrogates by U+FFFD instead of refusing them.

    Raises:
        UserError: it is not UTF-8 or not JSON, is nested too deep, holds a whole number of more digits than Python
            reads (4,300), or a lone surrogate.
    """
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(decoded)
        # JSON may escape one half of a surrogate pair (U+D800 to U+DFFF), which neither UTF-8 nor Parquet can store.
        if "\\ud" in decoded or "\\uD" in decoded:
            unescaped = json.dumps(value, ensure_ascii=False)
            if mend:
                return json.loads(valid_unicode(unescaped))
            unescaped.encode()
    except RecursionError as error:
        raise UserError(f"{where}: not valid JSON (nested too deep)") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in error.doc.strip() else ""
        raise UserError(f"{where}: not valid JSON ({error.msg}, {line}column {error.colno})") from error
    except ValueError as error:  # errors of UTF-8, of long numbers and of lone surrogates
        raise UserError(f"{where}: not valid JSON ({in_one_line(error)})") from error
    return value


def json_of_file(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    record = parse_json(path.read_bytes(), str(path))
    if not isinstance(record, dict):
        raise UserError(f"{path}: must hold a JSON object, got {type(record).__name__}")
    return record
