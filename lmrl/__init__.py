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
from lmrl.episode import Episode
from lmrl.lazy import exports

if TYPE_CHECKING:
    from lmrl import behaviours, callbacks, data, datamodules, evaluation, losses, models, modules, policies
    from lmrl.behaviours import make_policy
    from lmrl.evaluation import evaluate
    from lmrl.modules import load_module, load_policy
    from lmrl.storage import read_episodes

__version__ = "0.1.0"

__all__ = [
    "Episode",
    "__version__",
    "behaviours",
    "callbacks",
    "data",
    "datamodules",
    "evaluate",
    "evaluation",
    "load_module",
    "load_policy",
    "losses",
    "make",
    "make_policy",
    "models",
    "modules",
    "policies",
    "read_episodes",
    "task",
    "tasks",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "evaluate": "lmrl.evaluation",
        "load_module": "lmrl.modules",
        "load_policy": "lmrl.modules",
        "make_policy": "lmrl.behaviours",
        "read_episodes": "lmrl.storage",
        **dict.fromkeys(
            (
                "behaviours",
                "callbacks",
                "data",
                "datamodules",
                "evaluation",
                "losses",
                "models",
                "modules",
                "policies",
            ),
            "",
        ),
    },
)
