"""Read a dataset of one task, or say what is wrong with it."""

import os
from collections.abc import Iterator

from lmrl.envs.registration import task, tasks
from lmrl.episode import Episode
from lmrl.errors import UserError, unknown
from lmrl.storage import read_episodes

__all__ = ["read_dataset"]


def read_dataset(path: str | os.PathLike[str], task_name: str | None = None) -> Iterator[Episode]:
    """Yield the episodes of a file that holds at least one, all of the same known task.

    Args:
        path: a file that `lmrl.storage.write_episodes` wrote.
        task_name: the task that it must be of; None: any, as the first episode says.

    Raises:
        UserError: for an empty file, an unknown task, episodes of another task, or a broken file.
    """
    expected = None if task_name is None else task(task_name).name
    empty = True
    for number, episode in enumerate(read_episodes(path), start=1):
        if expected is None and episode.task not in tasks():
            raise unknown(f"task in episode {number} of {path}:", episode.task[:80], tasks())
        expected = episode.task if expected is None else expected
        if episode.task != expected:
            raise UserError(f"{path}: episode {number} is of task {episode.task!r:.80}, expected {expected!r}")
        empty = False
        yield episode
    if empty:
        raise UserError(f"{path}: holds no episodes")
