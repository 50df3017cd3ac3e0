"""Multi-turn reinforcement learning for language models: tasks, data and baselines of LMRL-Gym on PyTorch Lightning.

Importing the package registers the tasks with Gymnasium and loads no torch; the learning side
(`lmrl.modules`, `lmrl.datamodules`, `lmrl.evaluation`, ...) is imported when it is first named.

Example::

    env = lmrl.make("maze_fo")
    text, info = env.reset(seed=0)
    lmrl.evaluate("runs/maze_fo/ilql", episodes=25).scores()
"""

from typing import TYPE_CHECKING

from lmrl.envs import make, task, tasks
from lmrl.types import Episode
from lmrl.utils.lazy import exports

__all__ = [
    "Episode",
    "__version__",
    "callbacks",
    "data",
    "datamodules",
    "evaluate",
    "evaluation",
    "fit",
    "load_module",
    "load_policy",
    "losses",
    "make",
    "models",
    "modules",
    "policies",
    "read_episodes",
    "task",
    "tasks",
]

if TYPE_CHECKING:
    from lmrl import callbacks, data, datamodules, evaluation, losses, models, modules, policies
    from lmrl.commands.training import fit
    from lmrl.data.storage import read_episodes
    from lmrl.evaluation.evaluate import evaluate
    from lmrl.evaluation.loading import load_policy
    from lmrl.modules import load_module

__version__ = "0.2.0"


__getattr__, __dir__ = exports(
    __name__,
    {
        "evaluate": "lmrl.evaluation",
        "fit": "lmrl.commands.training",
        "load_module": "lmrl.modules",
        "load_policy": "lmrl.evaluation.loading",
        "read_episodes": "lmrl.data.storage",
        # Packages themselves.
        "callbacks": "",
        "data": "",
        "datamodules": "",
        "evaluation": "",
        "losses": "",
        "models": "",
        "modules": "",
        "policies": "",
    },
)
