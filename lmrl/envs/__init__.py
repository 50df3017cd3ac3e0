"""The games, their registry, and the laws that every environment obeys."""

from lmrl.envs.base import Opening, TextEnv, Turn
from lmrl.envs.checker import LawBroken, check_env
from lmrl.envs.outside import make
from lmrl.envs.registry import task, tasks
from lmrl.envs.scores import Scores, normalize
from lmrl.envs.task import Task

__all__ = [
    "LawBroken", "Opening", "Scores", "Task", "TextEnv", "Turn", "check_env", "make", "normalize", "task", "tasks",
]  # fmt: skip
