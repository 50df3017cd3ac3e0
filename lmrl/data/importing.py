"""Convert the files of the original benchmark into episodes."""

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lmrl.data.storage import check_place, write_episodes
from lmrl.envs import registry
from lmrl.envs.official import FileFormat
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

    The file has one record per line, or is one JSON list of records. The module ``official`` of a task's folder
    describes the records, and how missing fields are reconstructed.

    Records without any complete action are skipped, and a warning with their number is logged. ``info["start"]`` is
    set if only one start fits, so that `lmrl.data.verify` can replay the episode.

    Args:
        task_name: name of the task.
        path: the official file.
        out: the file to write.
        env: arguments of the environment that the file belongs to.
        overwrite: whether `out` may replace a different dataset.

    Raises:
        UserError: for a task without official files, an `out` that is another dataset, a missing or empty file, or a
            broken record. The message names the line (in a JSON list: the number from 1). Nothing is written.
    """
    task = registry.task(task_name)
    form = registry.file_format(task.name)
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    left_out: list[str] = []
    arguments = dict(env or {})
    metadata = {"task": task.name, "source": path.name, "env": arguments}
    check_place(Path(out), metadata, overwrite, [path])
    count = write_episodes(out, _episodes(task, form, path, left_out, arguments), metadata)
    if left_out:
        _log.warning("%s: %d records left out, because they have no action with a known answer", path, len(left_out))
    return count


def _episodes(
    task: Task, form: FileFormat, path: Path, left_out: list[str], arguments: Mapping[str, Any]
) -> Iterator[Episode]:
    env = registry.make(task.name, **arguments)
    empty = True
    for where, record in form.regroup(_records(path, form.list_begins)):
        empty = False
        try:
            episode = form.complete(form.parse(record), task, env)
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
    """Yield the records, each with its place in the file for messages."""
    # The first characters other than spaces tell a list from lines. A record may itself begin with "[".
    begins = ""
    try:
        with path.open(encoding="utf-8-sig") as file:
            while len(begins) < len(list_begins):
                character = file.read(1)
                if not character:
                    break
                begins += character.strip()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error})") from error
    if begins == list_begins:
        # A list is parsed as a whole; only files with one record per line are streamed.
        for number, record in enumerate(parse_json(path.read_bytes(), str(path)), start=1):
            yield f"record {number}", record
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"line {number}", parse_json(line, f"{path}, line {number}")
