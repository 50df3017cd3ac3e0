"""A task that is served in this process, by the server that `lmrl serve` runs."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from lmrl.envs import TextEnv
from lmrl.integrations.openenv import Limits, make_app
from lmrl.integrations.openenv import command as serve


def serving(
    task: str, limits: Limits | None = None, made: Callable[[], TextEnv] | None = None, **env: Any
) -> AbstractContextManager[str]:
    """The address at which it is served as long as this lasts; with ``made`` from environments of a test's own."""
    app = None if made is None else make_app(made, task, limits, "a task of a test")
    return serve.serving(task, limits, app, **env)
