"""A task as an OpenEnv environment: the server of ``lmrl serve``, and the client for users of the package `openenv`.

The server needs neither that package nor torch; the client is a class of its `EnvClient`.
"""

from typing import TYPE_CHECKING

from lmrl.utils.lazy import exports

__all__ = ["Limits", "TaskAction", "TaskClient", "TaskObservation", "TaskState", "make_app"]

if TYPE_CHECKING:
    from lmrl.integrations.openenv.client import TaskAction, TaskClient, TaskObservation, TaskState
    from lmrl.integrations.openenv.server import make_app
    from lmrl.integrations.openenv.sessions import Limits

_OPENENV = "lmrl.integrations.openenv"

__getattr__, __dir__ = exports(
    __name__,
    dict.fromkeys(__all__, f"{_OPENENV}.client") | {"Limits": f"{_OPENENV}.sessions", "make_app": f"{_OPENENV}.server"},
)
