"""The tasks by name, and how their environments are made."""

import inspect
import math
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, get_args

import gymnasium
from gymnasium.envs.registration import load_env_creator

from lmrl.envs.base import TextEnv
from lmrl.envs.rows import ROWS
from lmrl.envs.task import Task
from lmrl.errors import UserError, unknown

__all__ = ["Task", "make", "may_choose", "recorded_arguments", "register", "task", "tasks"]

_LARGEST = 2**53


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
    env = _creator(row)
    known = inspect.signature(env).parameters
    for argument in kwargs:
        if argument not in known:
            raise unknown(f"argument of task {name}", argument, known)
    return env(**{**row.kwargs, **kwargs})


def _creator(row: Task) -> Callable[..., TextEnv]:
    # What this loads has the type that `register` was given.
    env: Callable[..., TextEnv] = load_env_creator(row.entry_point)  # type: ignore[assignment]
    return env


def recorded_arguments(name: str, recorded: Any, given: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Arguments of a task's environment that a data file names, and those that the user gives, which come first.

    A file may come from anyone. It chooses numbers and true or false where the environment takes them, and texts out of
    `Task.choices`; who is meant to be trusted with a path or a program is the user alone. A second speaker
    (``partner``) is left out: whoever replays a dialogue says what answers.

    Args:
        name: of the task.
        recorded: ``env`` of the file's metadata.
        given: what the user says; None: nothing.
        where: the file, for the message.

    Raises:
        UserError: ``recorded`` holds anything else that the user has not given.
    """
    if not isinstance(recorded, Mapping):
        raise UserError(f"{where}: env of its metadata must be an object, got {recorded!r:.60}")
    chosen = dict(given or {})
    known = inspect.signature(_creator(task(name))).parameters
    for argument, value in recorded.items():
        if argument in chosen or argument == "partner":
            continue
        if argument not in known:
            raise UserError(f"{where}: env of its metadata has {argument!r:.60}, which task {name} has not")
        if not may_choose(name, argument, value):
            raise UserError(
                f"{where}: its metadata sets {argument} of the environment to {value!r:.80}; a file cannot choose "
                f"paths, programs and what is not listed, only you can: --env {argument}=..."
            )
        chosen[argument] = value
    return chosen


def may_choose(name: str, argument: str, value: Any) -> bool:
    """Whether somebody who is not trusted (a data file, a request to a server) may choose an environment's argument.

    Args:
        name: of the task.
        argument: of its environment; one that it does not have may not be chosen.
        value: a number, true, false or None of a type that the argument takes, or words out of `Task.choices`.
    """
    row = task(name)
    known = inspect.signature(_creator(row), eval_str=True).parameters
    if argument not in known:
        return False
    kinds = get_args(known[argument].annotation) or (known[argument].annotation,)
    if isinstance(value, str):
        choices = row.choices.get(argument, ())
        return bool(value.split()) and all(word in choices for word in value.split(" "))
    if value is None or isinstance(value, bool):
        return (NoneType if value is None else bool) in kinds
    if isinstance(value, int):
        return (int in kinds or float in kinds) and abs(value) <= _LARGEST
    return isinstance(value, float) and float in kinds and math.isfinite(value)


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
