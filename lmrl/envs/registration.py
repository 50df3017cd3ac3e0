"""The tasks by name, and how their environments are made."""

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from lmrl.envs.base import TextEnv
from lmrl.envs.rows import ROWS
from lmrl.envs.task import Task
from lmrl.errors import UserError, unknown

__all__ = ["Task", "make", "register", "task", "tasks"]


def tasks() -> dict[str, Task]:
    """All tasks by name."""
    return dict(_TASKS)


def task(name: str) -> Task:
    """The task of that name.

    Raises:
        UserError: for an unknown name; it lists the known ones.
    """
    if name not in _TASKS:
        raise unknown("task", name, _TASKS)
    return _TASKS[name]


def make(name: str, **kwargs: Any) -> TextEnv:
    """Make the environment of a task, bare: no wrappers between the caller and the game.

    Args:
        name: a name from `tasks`.
        kwargs: arguments of the environment that replace those of the task.

    Raises:
        UserError: for an unknown task or argument.
    """
    row = task(name)
    # What this loads has the type that `register` was given.
    env: Callable[..., TextEnv] = load_env_creator(row.entry_point)  # type: ignore[assignment]
    known = inspect.signature(env).parameters
    for argument in kwargs:
        if argument not in known:
            raise unknown(f"argument of task {name}", argument, known)
    return env(**{**row.kwargs, **kwargs})


def register(row: Task) -> None:
    """Make a task of your own known in this process, under its name and under its id in Gymnasium.

    ``row.entry_point`` is ``module:class``; a class of a notebook is ``__main__:MyGame``. Registering a name again
    replaces the task.

    Raises:
        UserError: the name is that of a task of the benchmark.
    """
    if row.name in {known.name for known in ROWS}:
        raise UserError(f"name must not be that of a task of the benchmark, got {row.name!r}")
    _TASKS[row.name] = row
    gymnasium.registry.pop(row.env_id, None)
    gymnasium.register(row.env_id, entry_point=row.entry_point, kwargs=dict(row.kwargs))


_TASKS = {row.name: row for row in ROWS}

for _row in ROWS:
    # Again under the same id (a reloaded module): Gymnasium would warn.
    if _row.env_id not in gymnasium.registry:
        gymnasium.register(_row.env_id, entry_point=_row.entry_point, kwargs=dict(_row.kwargs))
