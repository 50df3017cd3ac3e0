"""Read the files of the original benchmark into episodes."""

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lmrl.data.storage import check_place, write_episodes
from lmrl.envs.official import FileFormat
from lmrl.envs.registry import file_format, make, task
from lmrl.envs.task import Task
from lmrl.errors import UserError
from lmrl.types import Episode
from lmrl.utils.files import parse_json

__all__ = ["import_official"]

_log = logging.getLogger(__name__)


def import_official(
    task_name: str,
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    env: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> int:
    """Convert an official file to ``out`` (``.parquet`` or ``.jsonl``) and return the number of episodes.

    One record per line and one JSON list of records are both understood. The module
    ``official`` of a task's folder describes its records, and how missing fields are reconstructed.

    A record of which no action is left is left out, and a warning is logged that says how many were. ``info["start"]``
    is set where only one start fits, so that `lmrl.data.inspection` knows where to begin.

    Args:
        task_name: name of the task.
        path: the official file.
        out: the file to write.
        env: arguments of the environment that the file belongs to.
        overwrite: `out` may take the place of another dataset than this one.

    Raises:
        UserError: for a task without official files, an `out` that is another dataset, a missing or empty file, or a
            broken record, which is named by line (in a JSON list: by number from 1) with what is wrong. Nothing is
            written then.
    """
    row = task(task_name)
    form = file_format(row.name)
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    left_out: list[str] = []
    arguments = dict(env or {})
    metadata = {"task": row.name, "source": path.name, "env": arguments}
    check_place(Path(out), metadata, overwrite, [path])
    count = write_episodes(out, _episodes(row, form, path, left_out, arguments), metadata)
    if left_out:
        _log.warning("%s: %d records left out, because nothing is known after their only action", path, len(left_out))
    return count


def _episodes(
    row: Task, form: FileFormat, path: Path, left_out: list[str], arguments: Mapping[str, Any]
) -> Iterator[Episode]:
    env = make(row.name, **arguments)
    empty = True
    for where, record in form.regroup(_records(path, form.list_begins)):
        empty = False
        try:
            episode = form.complete(form.parse(record), row, env)
        except UserError as error:
            raise UserError(f"{path}, {where}: {error}") from error
        if episode is None:
            left_out.append(where)
        else:
            yield episode
    env.close()
    if empty:
        raise UserError(f"{path}: holds no records")


def _records(path: Path, list_begins: str) -> Iterator[tuple[str, Any]]:
    try:
        begins = _beginning(path, len(list_begins))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error})") from error
    yield from _list(path) if begins == list_begins else _lines(path)


def _beginning(path: Path, length: int) -> str:
    """The first characters that are not space."""
    found = ""
    with path.open(encoding="utf-8") as file:
        while len(found) < length and (character := file.read(1)):
            found += character.strip()
    return found


def _list(path: Path) -> Iterator[tuple[str, Any]]:
    records = parse_json(path.read_bytes(), str(path))
    for number, record in enumerate(records, start=1):
        yield f"record {number}", record


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"line {number}", parse_json(line, f"{path}, line {number}")
