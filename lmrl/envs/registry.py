"""The tasks by name: their environments, and what hangs on them (players, recipes, prompts, pictures).

The tasks of the benchmark are the ``TASKS`` of the packages beside this module. Other packages add theirs by an
entry point, see `lmrl.utils.plugins`.
"""

import inspect
import logging
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from types import NoneType
from typing import Any, cast, get_args

import gymnasium
from gymnasium.envs.registration import load_env_creator

from lmrl.envs.base import TextEnv
from lmrl.envs.official import FileFormat
from lmrl.envs.task import (
    ChatPrompt,
    Guide,
    MakeRecording,
    PartnerPrompts,
    Picture,
    Players,
    Probe,
    ProbePlot,
    Recording,
    Task,
    TaskTokens,
    TokensOf,
)
from lmrl.errors import UserError, in_one_line, unknown
from lmrl.types import Policy
from lmrl.utils.plugins import TASKS, entry_points_of

__all__ = [
    "BENCHMARK",
    "Task",
    "chat_prompt",
    "check_arguments",
    "file_format",
    "guide",
    "make",
    "make_picture",
    "make_policy",
    "may_choose",
    "partner_prompts",
    "pictures",
    "policy_names",
    "probe",
    "probe_plot",
    "recorded_arguments",
    "recording",
    "register",
    "task",
    "tasks",
]

_log = logging.getLogger(__name__)
_LARGEST = 2**53


def _benchmark() -> tuple[Task, ...]:
    packages = (found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)]) if found.ispkg)
    rows = [row for name in packages for row in import_module(f"{__package__}.{name}").TASKS]
    return tuple(sorted(rows, key=lambda row: row.table_row))


BENCHMARK: tuple[Task, ...] = _benchmark()
"""The tasks of the benchmark, in the order of the results table."""


def _enter(row: Task) -> None:
    _TASKS[row.name] = row
    gymnasium.registry.pop(row.env_id, None)  # again under the same id (a reloaded module): Gymnasium would warn
    gymnasium.register(row.env_id, entry_point=row.entry_point, kwargs=dict(row.kwargs))


_TASKS: dict[str, Task] = {}
for _row in BENCHMARK:
    _enter(_row)

_unlisted: set[str] = set()
"""Names of tasks that `tasks` does not tell."""

_searched = False
"""Whether other packages have been asked for their tasks."""


def tasks() -> dict[str, Task]:
    """All tasks by name: those of the benchmark, of other packages, and those of `register`."""
    _search()
    return {name: row for name, row in _TASKS.items() if name not in _unlisted}


def task(name: str) -> Task:
    """The task of that name.

    Raises:
        UserError: for an unknown name; it lists the known ones.
    """
    if name not in _TASKS:
        _search()
    if name not in _TASKS:
        raise unknown("task", name, tasks())
    return _TASKS[name]


def register(row: Task, *, listed: bool = True) -> None:
    """Make a task of your own known in this process, under its name and under its id in Gymnasium.

    ``row.entry_point`` is ``module:class``; a class of a notebook is ``__main__:MyGame``. Registering a name again
    replaces the task.

    Args:
        row: the task.
        listed: whether `tasks` tells it.

    Raises:
        UserError: the name is that of a task of the benchmark.
    """
    if row.name in {known.name for known in BENCHMARK}:
        raise UserError(f"name must not be that of a task of the benchmark, got {row.name!r}")
    _enter(row)
    (_unlisted.discard if listed else _unlisted.add)(row.name)


def _search() -> None:
    """Load the tasks of other packages, once; a broken one is reported and left out."""
    global _searched
    if _searched:
        return
    _searched = True
    for point in entry_points_of(TASKS):
        package = point.dist.name if point.dist is not None else point.value
        try:
            for row in _rows_of(point):
                if row.name in _TASKS:
                    raise UserError(f"there is a task {row.name!r} already")
                _enter(row)
        except Exception as error:  # whatever its import raises
            told = in_one_line(f"{type(error).__name__}: {error}", 300)
            _log.warning("tasks of the package %s (%s) are left out: %s", package, point.value, told)


def _rows_of(point: EntryPoint) -> Iterable[Task]:
    value = point.load()
    rows = (value,) if isinstance(value, Task) else value
    if not isinstance(rows, tuple) or not all(isinstance(row, Task) for row in rows):
        raise UserError(f"the entry point {point.name!r} must be a Task or a tuple of them, got {type(value).__name__}")
    return rows


def make(name: str, **kwargs: Any) -> TextEnv:
    """Make the environment of a task, bare: no wrappers between the caller and the game.

    Args:
        name: a name from `tasks`.
        kwargs: arguments of the environment that replace those of the task.

    Raises:
        UserError: for an unknown task or argument.
    """
    row = task(name)
    check_arguments(name, kwargs)
    return _creator(row)(**{**row.kwargs, **kwargs})


def check_arguments(name: str, arguments: Iterable[str]) -> None:
    """Make sure that the environment of a task has arguments of these names.

    Raises:
        UserError: it does not; the message lists those that it has.
    """
    known = inspect.signature(_creator(task(name))).parameters
    for argument in arguments:
        if argument not in known:
            raise unknown(f"argument of task {name}", argument, known)


def _creator(row: Task) -> Callable[..., TextEnv]:
    # What this loads has the type that `register` was given.
    env: Callable[..., TextEnv] = load_env_creator(row.entry_point)  # type: ignore[assignment]
    return env


def recorded_arguments(name: str, recorded: Any, given: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Arguments of a task's environment that a data file names, and those that the user gives, which come first.

    A file may come from anyone. It chooses numbers and true or false where the environment takes them, and texts out of
    `Task.choices`; who is meant to be trusted with a path or a program is the user alone. A partner
    (``partner``) is left out: the caller that replays a dialogue supplies the answers.

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


def _hook(row: Task, field: str) -> Any:
    """Return the object that a task's hook names, or None if the task has no such hook."""
    where = getattr(row, field)
    if not where:
        return None
    name, _, attribute = where.partition(":")
    module = import_module(name)
    if not hasattr(module, attribute):
        raise UserError(f"{field} of task {row.name} is {where!r}: there is no {attribute!r} in {name}")
    return getattr(module, attribute)


def _needed(task_name: str, field: str, kind: str) -> Any:
    """Return a hook that the task must have; ``kind`` is the kind of task in the error message."""
    having = [name for name, row in tasks().items() if getattr(row, field)]
    if task_name not in having and not (task_name in _unlisted and getattr(_TASKS[task_name], field)):
        raise unknown(kind, task_name, having)
    return _hook(_TASKS[task_name], field)


def policy_names(task_name: str) -> tuple[str, ...]:
    """Names of the scripted players of a task, of which it may have none.

    Raises:
        UserError: for an unknown task.
    """
    return tuple(_players(task(task_name)))


def make_policy(task_name: str, name: str, env: Mapping[str, Any] | None = None) -> Policy:
    """The player of that name: ``random``, ``behaviour`` (the dataset's, let loose) or ``optimal`` where it exists.

    Args:
        task_name: name of the task.
        name: one of `policy_names`.
        env: arguments of the environment that it will play in, where they are not the task's own.

    Raises:
        UserError: for an unknown task or player; it lists the known ones.
    """
    row = task(task_name)
    players = _players(row)
    if name not in players:
        raise unknown(f"policy of {task_name}", name, players)
    return players[name]({**row.kwargs, **(env or {})})


def _players(row: Task) -> Players:
    return cast(Players, _hook(row, "players") or {})


def recording(task_name: str, env: Mapping[str, Any] | None = None) -> Recording:
    """The recipe of a task's dataset, in an environment with those arguments.

    Raises:
        UserError: for an unknown task, or one that has no recipe.
    """
    row = task(task_name)
    recipe: MakeRecording | None = _hook(row, "recording")
    if recipe is None:
        raise UserError(f"task {task_name!r} has no recipe for a dataset; give the path of one (data.init_args.path)")
    return recipe(task_name, {**row.kwargs, **(env or {})})


def file_format(task_name: str) -> FileFormat:
    """How the task's file of the original benchmark is read.

    Raises:
        UserError: for an unknown task, or one that has no official file.
    """
    return cast(FileFormat, _needed(task_name, "official", "task with official files"))


def chat_prompt(task_name: str) -> ChatPrompt:
    """How a task is put to a chat model that plays.

    Raises:
        UserError: for an unknown task, or one that has no prompt.
    """
    return cast(ChatPrompt, _needed(task_name, "chat", "task with prompts"))


def guide(task_name: str) -> Guide:
    """Return the guide for people who play a task. The default is its description and its actions.

    Raises:
        UserError: for an unknown task.
    """
    row = task(task_name)
    known = ", ".join(action.strip() for action in row.actions)
    words = f"One of: {known}." if known else "A line of text."
    return cast("Guide | None", _hook(row, "guide")) or Guide(f"{row.description}.", words, ("", ""))


def partner_prompts(task_name: str) -> PartnerPrompts:
    """Return the prompts for models that act as the partner of a task.

    Raises:
        UserError: for an unknown task, or one whose partner has no prompts.
    """
    return cast(PartnerPrompts, _needed(task_name, "partner", "dialogue task"))


def make_picture(task_name: str, make: Callable[[], gymnasium.Env[str, str]]) -> Picture | None:
    """How episodes of a task are drawn, in an environment that is made on demand; None if they are not.

    Raises:
        UserError: for an unknown task; what `make` raises.
    """
    kind: type[Picture] | None = _hook(task(task_name), "picture")
    return None if kind is None else kind(make)


def pictures(task_names: Iterable[str]) -> list[type[Picture]]:
    """Return the pictures for pages that show episodes of these tasks, each kind once.

    A picture of another package that cannot be imported is reported and left out: the page is for all tasks.
    """
    found: dict[str, type[Picture]] = {}
    for name in task_names:
        try:
            kind: type[Picture] | None = _hook(tasks()[name], "picture") if name in tasks() else None
        except Exception as error:  # whatever its import raises
            told = in_one_line(f"{type(error).__name__}: {error}", 300)
            _log.warning("pages show no picture of task %s: %s", name, told)
            continue
        if kind is not None:
            found[kind.kind] = kind
    return [*found.values()]


def task_tokens(task_name: str, env: Mapping[str, Any] | None = None) -> TaskTokens:
    """The texts of a task that are one token each; none, if it lists none.

    Args:
        task_name: name of the task.
        env: arguments of its environment.

    Raises:
        UserError: for an unknown task.
    """
    found = _hook(task(task_name), "tokens")
    return TaskTokens({}) if found is None else cast(TokensOf, found)(env or {})


def probe(task_name: str) -> Probe | None:
    """What is asked of policies in states of interest; None if a task has no such states.

    Raises:
        UserError: for an unknown task.
    """
    return cast("Probe | None", _hook(task(task_name), "probe"))


def probe_plot(task_name: str) -> ProbePlot | None:
    """How a report draws the answers; None if it does not.

    Raises:
        UserError: for an unknown task.
    """
    return cast("ProbePlot | None", _hook(task(task_name), "probe_plot"))
