"""The games, their registration, and the laws that every environment obeys."""

from lmrl.envs.base import TextEnv
from lmrl.envs.check import LawBroken, check_env
from lmrl.envs.registration import Task, make, task, tasks
from lmrl.envs.scores import Scores, normalize

__all__ = ["LawBroken", "Scores", "Task", "TextEnv", "check_env", "make", "normalize", "task", "tasks"]
