"""Multi-turn reinforcement learning for language models: tasks, data and baselines of LMRL-Gym on PyTorch Lightning.

Importing the package registers the tasks with Gymnasium and loads no torch; the learning side
(`lmrl.modules`, `lmrl.datamodules`, `lmrl.evaluation`, ...) is imported when it is first named.

Example::

    env = lmrl.make("maze_fo")
    text, info = env.reset(seed=0)
"""

from importlib import import_module
from types import ModuleType

from lmrl.envs import make, task, tasks
from lmrl.episode import Episode

__version__ = "0.1.0"

__all__ = ["Episode", "__version__", "make", "task", "tasks"]

_ON_FIRST_USE = (
    "behaviours",
    "callbacks",
    "data",
    "datamodules",
    "evaluation",
    "losses",
    "models",
    "modules",
    "policies",
)


def __getattr__(name: str) -> ModuleType:
    if name in _ON_FIRST_USE:
        return import_module(f"lmrl.{name}")
    raise AttributeError(f"module 'lmrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_FIRST_USE})
