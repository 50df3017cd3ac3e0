"""Read the files of the original benchmark into episodes."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmrl.data.official_maze import maze_episode
from lmrl.data.official_records import Game, game_of_texts, game_of_transitions
from lmrl.envs.base import TextEnv
from lmrl.envs.registration import Task, make, task
from lmrl.episode import Episode
from lmrl.errors import UserError, unknown
from lmrl.storage import write_episodes

__all__ = ["import_official"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How to read a task's official file."""

    parse: Callable[[Any], Game]
    complete: Callable[[Game, Task, TextEnv], Episode | None]
    list_begins: str
    """First characters, spaces aside, of a file that is one JSON list; otherwise each line is a record."""


_LAYOUTS = {
    "maze_fo": _Layout(game_of_transitions, maze_episode, "[["),
    "maze_po": _Layout(game_of_texts, maze_episode, "["),
}


def import_official(task_name: str, path: str | os.PathLike[str], out: str | os.PathLike[str]) -> int:
    r"""Convert an official file to ``out`` (``.parquet`` or ``.jsonl``) and return the number of episodes.

    One record per line and one JSON list of records are both understood. A maze FO record is a list of ``{"state",
    "action", "reward", "done"}``, a maze PO record is ``{"text_history", "rewards", "dones"}`` whose lists go by text.

    The maze files do not say what followed the last action, so it is filled in:

    - done with reward 0: ``Success\n``, terminated;
    - done as the 101st action: ``Failure\n``, truncated;
    - otherwise the episode was cut short: the environment is asked, from every start that fits the texts, for its
      answer to the last action. If there is one answer, it is the last observation; if not, the last action is
      dropped and the text before it is the last observation. Either way the episode is truncated.

    A record of which no action is left is left out, and a warning is logged that says how many were. ``info["start"]``
    is set where only one start fits, so that `lmrl.data.verify` knows where to begin.

    Raises:
        UserError: for a task without official layout, a missing or empty file, or a broken record, which is named by
            line (in a JSON list: by number from 1) with what is wrong. Nothing is written then.
    """
    row = task(task_name)
    if row.name not in _LAYOUTS:
        raise unknown("official layout of task", row.name, _LAYOUTS)
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    left_out: list[str] = []
    metadata = {"task": row.name, "source": path.name}
    count = write_episodes(out, _episodes(row, path, left_out), metadata)
    if left_out:
        _log.warning("%s: %d records left out, because nothing is known after their only action", path, len(left_out))
    return count


def _episodes(row: Task, path: Path, left_out: list[str]) -> Iterator[Episode]:
    layout, env, empty = _LAYOUTS[row.name], make(row.name), True
    for where, record in _records(path, layout.list_begins):
        empty = False
        try:
            game = layout.parse(record)
        except UserError as error:
            raise UserError(f"{path}, {where}: {error}") from error
        episode = layout.complete(game, row, env)
        if episode is None:
            left_out.append(where)
        else:
            yield episode
    env.close()
    if empty:
        raise UserError(f"{path}: holds no records")


def _records(path: Path, list_begins: str) -> Iterator[tuple[str, Any]]:
    try:
        yield from _list(path) if _beginning(path, len(list_begins)) == list_begins else _lines(path)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error})") from error


def _beginning(path: Path, length: int) -> str:
    """The first characters that are not space."""
    found = ""
    with path.open(encoding="utf-8") as file:
        while len(found) < length and (character := file.read(1)):
            found += character.strip()
    return found


def _list(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: not valid JSON ({error})") from error
    for number, record in enumerate(records, start=1):
        yield f"record {number}", record


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}, line {number}: not valid JSON ({error})") from error
            yield f"line {number}", record
