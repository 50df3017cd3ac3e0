"""Record a task's dataset with its scripted player; the same file whatever the number of workers."""

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lmrl.behaviours.registry import recording
from lmrl.envs.registration import make, task
from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.storage import write_episodes

__all__ = ["GENERATOR_VERSION", "dataset_path", "generate"]

GENERATOR_VERSION = 1
"""Goes up whenever the same task, size and seed give other episodes."""

_CHUNK = 128
_MAX_SEED = 2**53


def dataset_path(task_name: str, size: int, seed: int, env: Mapping[str, Any] | None = None) -> Path:
    """Where `generate` puts a dataset: under ``$LMRL_DATA``, or ``data`` in the working directory.

    Arguments of the environment go into the name as a digest; the file's metadata spells them out.

    Raises:
        UserError: for an unknown task.
    """
    folder = Path(os.environ.get("LMRL_DATA") or "data")
    variant = f"-{hashlib.sha256(json.dumps(dict(env), sort_keys=True).encode()).hexdigest()[:8]}" if env else ""
    return folder / f"{task(task_name).name}-v{GENERATOR_VERSION}-n{size}-s{seed}{variant}.parquet"


def generate(
    task_name: str,
    size: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    workers: int = 1,
    progress: bool = True,
    env: Mapping[str, Any] | None = None,
) -> Path:
    """Record episodes and write them with their origin as metadata.

    Args:
        task_name: a name from `lmrl.tasks`.
        size: number of episodes; None: that of the task's default dataset.
        seed: decides every episode; another number of workers, or a longer dataset, does not change them.
        out: a ``.parquet`` or ``.jsonl`` file; None: `dataset_path`.
        workers: processes that play.
        progress: show a progress bar on standard error.
        env: arguments of the environment, as for `lmrl.make`; plain values.

    Returns:
        The path of the file, which is written in one step when all is done.

    Raises:
        UserError: for an unknown task, or a number out of range.
    """
    row, env = task(task_name), dict(env or {})
    size = row.dataset_size if size is None else size
    for name, value, least in (("size", size, 1), ("workers", workers, 1), ("seed", seed, 0)):
        if not least <= value < _MAX_SEED:
            raise UserError(f"{name} must be a whole number from {least}, got {value}")
    path = dataset_path(task_name, size, seed, env) if out is None else Path(out)
    metadata = {
        "task": task_name,
        "generator_version": GENERATOR_VERSION,
        "size": size,
        "seed": seed,
        "behaviour": row.behaviour,
        "env": env,
    }
    write_episodes(path, _shown(_episodes(task_name, size, seed, workers, env), task_name, size, progress), metadata)
    return path


def _episodes(task_name: str, size: int, seed: int, workers: int, env: Mapping[str, Any]) -> Iterator[Episode]:
    """All episodes in the order of their indices."""
    chunks = [(task_name, seed, first, min(first + _CHUNK, size), env) for first in range(0, size, _CHUNK)]
    if workers == 1 or len(chunks) == 1:
        for chunk in chunks:
            yield from _play(*chunk)
        return
    # New interpreters rather than forks: forking a process that has threads (a progress bar) may hang.
    with ProcessPoolExecutor(workers, get_context("spawn"), _end_with_parent) as pool:
        running: deque[Future[list[Episode]]] = deque()
        for chunk in chunks:
            running.append(pool.submit(_play, *chunk))
            # A bounded queue: results wait for the file, not in memory.
            if len(running) > 2 * workers:
                yield from running.popleft().result()
        while running:
            yield from running.popleft().result()


def _play(task_name: str, seed: int, first: int, last: int, env: Mapping[str, Any]) -> list[Episode]:
    """Episodes ``first`` to ``last - 1``."""
    recipe = recording(task_name, env)
    starts = (recipe.start(seed, index) for index in range(first, last))
    return in_order(rollout(recipe.policy, lambda: make(task_name, **env), starts, task=task_name, stop=recipe.stop))


def _end_with_parent() -> None:
    """Let a worker die with the process that it works for, however that one ends."""
    Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _shown(episodes: Iterable[Episode], task_name: str, size: int, progress: bool) -> Iterator[Episode]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not progress) as bar:
        job = bar.add_task(f"recording {task_name}", total=size)
        for episode in episodes:
            yield episode
            bar.advance(job)
