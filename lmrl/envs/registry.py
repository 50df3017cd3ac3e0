"""The tasks by name: their environments, and what belongs to them (players, recipes, prompts, pictures).

The tasks of the benchmark are the ``TASKS`` of the packages next to this module. Other packages add theirs by an
entry point, see `lmrl.utils.plugins`.
"""

import inspect
import logging
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from operator import attrgetter
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
    StartsOf,
    Task,
    TaskTokens,
    TokensOf,
)
from lmrl.errors import UserError, in_one_line, unknown
from lmrl.types import Policy
from lmrl.utils.plugins import TASKS, entry_points_of

__all__ = [
    "BENCHMARK", "DIALOGUES", "Task", "chat_prompt", "check_arguments", "file_format", "guide", "make", "make_picture",
    "make_policy", "may_choose", "partner_prompts", "pictures", "policy_names", "probe", "probe_plot",
    "recorded_arguments", "recording", "register", "register_where_unknown", "starts", "task", "task_tokens", "tasks",
]  # fmt: skip

_log = logging.getLogger(__name__)
_LARGEST_EXACT_INTEGER = 2**53  # every whole number up to here is exact in JSON readers that know floats only


def _benchmark() -> tuple[Task, ...]:
    found: list[Task] = []
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.ispkg:
            found += import_module(f"{__package__}.{module.name}").TASKS
    return tuple(sorted(found, key=attrgetter("table_row")))


BENCHMARK: tuple[Task, ...] = _benchmark()
"""The tasks of the benchmark, in the order of the results table."""


def _enter(task: Task) -> None:
    _TASKS[task.name] = task
    # Gymnasium warns if an id is registered twice, as by a module that is loaded again.
    gymnasium.registry.pop(task.env_id, None)
    gymnasium.register(task.env_id, entry_point=task.entry_point, kwargs=dict(task.kwargs))


DIALOGUES = Task(
    "dialogues", "recorded dialogues without a simulator", env_id="", entry_point="", max_action_tokens=256
)
"""The task of files of messages and rewards (`lmrl.data.dialogues`). No environment can be made of it."""

_TASKS: dict[str, Task] = {DIALOGUES.name: DIALOGUES}
for _task in BENCHMARK:
    _enter(_task)

_unlisted: set[str] = {DIALOGUES.name}  # names of tasks that `tasks` leaves out
_searched = False  # whether the tasks of other packages have been loaded


def tasks() -> dict[str, Task]:
    """Return all tasks by name: those of the benchmark, of other packages, and those of `register`."""
    _search()
    return {name: task for name, task in _TASKS.items() if name not in _unlisted}


def task(name: str) -> Task:
    """Return the task of that name.

    Raises:
        UserError: for an unknown name; it lists the known ones.
    """
    # Other packages are imported only if the name is not known without them: that takes time.
    if name not in _TASKS:
        _search()
    if name not in _TASKS:
        raise unknown("task", name, tasks())
    return _TASKS[name]


def register(task: Task, *, listed: bool = True) -> None:
    """Make a task of your own known in this process, under its name and under its id in Gymnasium.

    ``task.entry_point`` is ``module:class``; a class of a notebook is ``__main__:MyGame``. Registering a name again
    replaces the task.

    Args:
        task: the task.
        listed: whether `tasks` lists it.

    Raises:
        UserError: the name is that of a task of the benchmark, or ``dialogues``.
    """
    for official in (*BENCHMARK, DIALOGUES):
        if task.name == official.name:
            raise UserError(f"name must not be that of a task of the benchmark, got {task.name!r}")
    _enter(task)
    if listed:
        _unlisted.discard(task.name)
    else:
        _unlisted.add(task.name)


def register_where_unknown(task: Task) -> None:
    """Make a task known in a process that another one has started, where `register` was called there alone."""
    _search()
    if task.name not in _TASKS:
        register(task, listed=False)


def _search() -> None:
    """Load the tasks of other packages, once; a broken one is reported and left out."""
    global _searched
    if _searched:
        return
    _searched = True
    for point in entry_points_of(TASKS):
        package = point.dist.name if point.dist is not None else point.value
        try:
            value = point.load()
            found = (value,) if isinstance(value, Task) else value
            if not isinstance(found, tuple) or not all(isinstance(task, Task) for task in found):
                kind = type(value).__name__
                raise UserError(f"the entry point {point.name!r} must be a Task or a tuple of them, got {kind}")
            for task in found:
                if task.name in _TASKS:
                    raise UserError(f"there is a task {task.name!r} already")
                _enter(task)
        except Exception as error:  # the import of another package may raise anything
            reason = in_one_line(f"{type(error).__name__}: {error}", 300)
            _log.warning("tasks of the package %s (%s) are left out: %s", package, point.value, reason)


def make(name: str, **kwargs: Any) -> TextEnv:
    """Make the environment of a task, bare: no wrappers between the caller and the game.

    Args:
        name: a name from `tasks`.
        kwargs: arguments of the environment that replace those of the task.

    Raises:
        UserError: for an unknown task or argument.
    """
    entry = task(name)
    check_arguments(name, kwargs)
    return _creator(entry)(**{**entry.kwargs, **kwargs})


def check_arguments(name: str, arguments: Iterable[str]) -> None:
    """Make sure that the environment of a task has arguments of these names.

    Raises:
        UserError: it does not; the message lists those that it has.
    """
    known = inspect.signature(_creator(task(name))).parameters
    for argument in arguments:
        if argument not in known:
            raise unknown(f"argument of task {name}", argument, known)


def _creator(task: Task) -> Callable[..., TextEnv]:
    if task is DIALOGUES:
        raise UserError(
            "recorded dialogues have no simulator to play with; judge a policy by a file of them: lmrl evaluate FILE "
            "--policy RUN"
        )
    # Gymnasium does not know that the entry points of our tasks are text environments.
    env: Callable[..., TextEnv] = load_env_creator(task.entry_point)  # type: ignore[assignment]
    return env


def recorded_arguments(name: str, recorded: Any, given: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Merge the environment arguments that a data file names with those of the user, which take precedence.

    A file may come from anyone. It may choose numbers and true or false where the environment takes them, and texts
    out of `Task.choices`; only the user may choose a path or a program. A partner (``partner``) is left out: the
    caller that replays a dialogue supplies the answers.

    Args:
        name: name of the task.
        recorded: ``env`` of the file's metadata; None, as in some older evaluations: none.
        given: arguments of the user; None: none.
        where: the file, for the message.

    Raises:
        UserError: ``recorded`` holds anything else that the user has not given.
    """
    if recorded is None:
        recorded = {}
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
    """Return whether an untrusted source (a data file, a request to a server) may choose an environment's argument.

    Args:
        name: name of the task.
        argument: argument of its environment; one that it does not have may not be chosen.
        value: a number, true, false or None of a type that the argument takes, or words out of `Task.choices`.
    """
    entry = task(name)
    known = inspect.signature(_creator(entry), eval_str=True).parameters
    if argument not in known:
        return False
    # The members of a union such as ``int | None``, or the type itself.
    kinds = get_args(known[argument].annotation) or (known[argument].annotation,)
    if isinstance(value, str):
        # One word of the list, or several with single spaces between.
        return bool(value.split()) and set(value.split(" ")) <= set(entry.choices.get(argument, ()))
    # A bool is an int in Python, so it has to be looked at first.
    if value is None or isinstance(value, bool):
        return (NoneType if value is None else bool) in kinds
    if isinstance(value, int):
        return (int in kinds or float in kinds) and abs(value) <= _LARGEST_EXACT_INTEGER
    return isinstance(value, float) and float in kinds and math.isfinite(value)


def _hook(task: Task, field: str) -> Any:
    """Return the object that a task's hook (``module:attribute``) names, or None if the task has no such hook."""
    where = getattr(task, field)
    if not where:
        return None
    name, _, attribute = where.partition(":")
    module = import_module(name)
    if not hasattr(module, attribute):
        raise UserError(f"{field} of task {task.name} is {where!r}: there is no {attribute!r} in {name}")
    return getattr(module, attribute)


def _needed(task_name: str, field: str, kind: str) -> Any:
    """Return a hook that the task must have; ``kind`` is the kind of task in the error message."""
    _search()
    entry = _TASKS.get(task_name)
    if entry is None or not getattr(entry, field):
        raise unknown(kind, task_name, [name for name, other in tasks().items() if getattr(other, field)])
    return _hook(entry, field)


def policy_names(task_name: str) -> tuple[str, ...]:
    """Return the names of a task's scripted players; a task may have none.

    Raises:
        UserError: for an unknown task.
    """
    return tuple(_players(task(task_name)))


def make_policy(task_name: str, name: str, env: Mapping[str, Any] | None = None) -> Policy:
    """Make a scripted player: ``random``, ``behaviour`` (the recorder of the dataset), ``optimal``, ...

    Args:
        task_name: name of the task.
        name: one of `policy_names`.
        env: arguments of the environment that it will play in; they replace those of the task.

    Raises:
        UserError: for an unknown task or player; it lists the known ones.
    """
    entry = task(task_name)
    players = _players(entry)
    if name not in players:
        raise unknown(f"policy of {task_name}", name, players)
    return players[name]({**entry.kwargs, **(env or {})})


def _players(task: Task) -> Players:
    return cast(Players, _hook(task, "players") or {})


def recording(task_name: str, env: Mapping[str, Any] | None = None) -> Recording:
    """Return the recipe of a task's dataset, in an environment with those arguments.

    Raises:
        UserError: for an unknown task, or one that has no recipe.
    """
    entry = task(task_name)
    recipe: MakeRecording | None = _hook(entry, "recording")
    if recipe is None:
        raise UserError(f"task {task_name!r} has no recipe for a dataset; give the path of one (data.init_args.path)")
    return recipe(task_name, {**entry.kwargs, **(env or {})})


def starts(
    task_name: str, env: Mapping[str, Any] | None = None, *, selection: bool = False
) -> tuple[Mapping[str, Any], ...]:
    """Return the reset options that an evaluation cycles through; empty if seeds decide how episodes begin.

    Args:
        task_name: name of the task.
        env: arguments of the environment; they replace those of the task.
        selection: return those for choosing checkpoints and settings.

    Raises:
        UserError: for an unknown task, or arguments that the environment refuses.
    """
    entry = task(task_name)
    if env:
        starts_of: StartsOf | None = _hook(entry, "starts_of")
        changed = None if starts_of is None else starts_of(env)
        if changed is not None:
            return changed
    if selection and entry.selection:
        return entry.selection
    return entry.starts


def file_format(task_name: str) -> FileFormat:
    """Return the format of the task's files of the original benchmark.

    Raises:
        UserError: for an unknown task, or one that has no official file.
    """
    return cast(FileFormat, _needed(task_name, "official", "task with official files"))


def chat_prompt(task_name: str) -> ChatPrompt:
    """Return the prompt of a task for chat models that play it.

    Raises:
        UserError: for an unknown task, or one that has no prompt.
    """
    return cast(ChatPrompt, _needed(task_name, "chat", "task with prompts"))


def guide(task_name: str) -> Guide:
    """Return the guide for people who play a task. The default is its description and its actions.

    Raises:
        UserError: for an unknown task.
    """
    entry = task(task_name)
    known = ", ".join(action.strip() for action in entry.actions)
    words = f"One of: {known}." if known else "A line of text."
    return cast("Guide | None", _hook(entry, "guide")) or Guide(f"{entry.description}.", words, ("", ""))


def partner_prompts(task_name: str) -> PartnerPrompts:
    """Return the prompts for models that act as the partner of a task.

    Raises:
        UserError: for an unknown task, or one whose partner has no prompts.
    """
    return cast(PartnerPrompts, _needed(task_name, "partner", "dialogue task"))


def make_picture(task_name: str, make: Callable[[], gymnasium.Env[str, str]]) -> Picture | None:
    """Make the picture of a task, for an environment that is made on demand, or return None if the task has none.

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
        except Exception as error:  # the import of another package may raise anything
            reason = in_one_line(f"{type(error).__name__}: {error}", 300)
            _log.warning("pages show no picture of task %s: %s", name, reason)
            continue
        if kind is not None:
            found[kind.kind] = kind
    return list(found.values())


def task_tokens(task_name: str, env: Mapping[str, Any] | None = None) -> TaskTokens:
    """Return the texts of a task that are one token each; none, if it lists none.

    Args:
        task_name: name of the task.
        env: arguments of its environment.

    Raises:
        UserError: for an unknown task.
    """
    tokens_of: TokensOf | None = _hook(task(task_name), "tokens")
    return TaskTokens({}) if tokens_of is None else tokens_of(env or {})


def probe(task_name: str) -> Probe | None:
    """Return the probe of policies in states of interest, or None if a task has no such states.

    Raises:
        UserError: for an unknown task.
    """
    return cast("Probe | None", _hook(task(task_name), "probe"))


def probe_plot(task_name: str) -> ProbePlot | None:
    """Return how a report draws the results of the probe, or None if it does not draw them.

    Raises:
        UserError: for an unknown task.
    """
    return cast("ProbePlot | None", _hook(task(task_name), "probe_plot"))
