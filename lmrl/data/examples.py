"""The first episodes of a task's dataset, to show somebody how it is played."""

from itertools import islice

from lmrl.data.generate import dataset_path, generate
from lmrl.envs.registration import task
from lmrl.episode import Episode
from lmrl.storage import read_episodes

__all__ = ["first_episodes"]

_COUNT = 32


def first_episodes(task_name: str, count: int = _COUNT) -> list[Episode]:
    """Episodes 0 to ``count - 1`` of the default dataset.

    They come from its file if that is there. Otherwise so many are recorded and kept: a longer dataset begins with the
    same episodes.

    Raises:
        UserError: for an unknown task.
    """
    paths = [dataset_path(task_name, size, 0) for size in (task(task_name).dataset_size, count)]
    found = next((path for path in paths if path.is_file()), None) or generate(task_name, count, progress=False)
    return list(islice(read_episodes(found), count))
