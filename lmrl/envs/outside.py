"""Games of other libraries as tasks, such as ``openenv:URL`` and ``textarena:NAME``: a name makes the task.

Plugins add kinds of names by entry points (`lmrl.utils.plugins.TASK_KINDS`). Such a task is known only after its user
has named it (`named_task`, `make`, a command). A file, a checkpoint or another machine cannot do that, so none of them
opens an address or loads a game.

These games need not obey the laws of `lmrl.envs.checker`; ``lmrl check-env`` lists the broken ones.
"""

import re
from typing import Any

from lmrl.envs import registry
from lmrl.envs.base import TextEnv
from lmrl.envs.task import ChatPrompt, Task
from lmrl.utils.plugins import TASK_KINDS, entry_points_of

__all__ = ["CHAT", "make", "named_task", "outside_task"]

CHAT = ChatPrompt(role="a player", rules="Play the game that is described below.", examples=0)
"""Prompt of games that explain themselves in their first text."""


def outside_task(kind: str, rest: str, entry_point: str, **kwargs: Any) -> Task:
    """Return the task of a game of another library.

    Args:
        kind: part of the name before the colon.
        rest: part of the name after the colon.
        entry_point: class of the environment, ``module:Class``.
        kwargs: its arguments.
    """
    name = f"{kind}:{rest}"
    return Task(
        name=name,
        description=f"{rest}, by {kind}",
        env_id=f"lmrl/{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}-v0",
        entry_point=entry_point,
        max_action_tokens=128,
        kwargs=kwargs,
        chat=f"{__name__}:CHAT",
    )


def named_task(name: str) -> Task:
    """Return the task that a user has named, and register it if it is one of another library.

    Raises:
        UserError: there is none of that name; the package of its game is missing.
    """
    kind, _, rest = name.partition(":")
    # Nothing of a plugin is imported unless the name has its prefix.
    for point in entry_points_of(TASK_KINDS):
        if point.name == kind and kind != name:
            task: Task = point.load()(rest)
            registry.register(task, listed=False)
            return task
    return registry.task(name)


def make(name: str, **kwargs: Any) -> TextEnv:
    """Make the environment of a task that the user has named: as `lmrl.envs.registry.make`, and also one of others.

    Args:
        name: a name from `lmrl.tasks`, ``openenv:URL`` or ``textarena:NAME``.
        kwargs: arguments of the environment that replace those of the task.

    Raises:
        UserError: for an unknown task or argument.
    """
    return registry.make(named_task(name).name, **kwargs)
