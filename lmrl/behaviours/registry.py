"""Scripted players and recording recipes by task and name."""

from collections.abc import Callable

from lmrl.behaviours.maze import MazePlayer
from lmrl.behaviours.maze_recording import SKILL, maze_recording
from lmrl.behaviours.recording import Recording
from lmrl.envs.registration import task
from lmrl.errors import unknown
from lmrl.protocols import Policy

__all__ = ["make_policy", "policy_names", "recording"]

_MAZE: dict[str, Callable[[], Policy]] = {
    "random": lambda: MazePlayer(0.0),
    "behaviour": lambda: MazePlayer(SKILL),
    "optimal": lambda: MazePlayer(1.0),
}

# A new game adds its players and its recipe here.
_PLAYERS: dict[str, dict[str, Callable[[], Policy]]] = {"maze_fo": _MAZE, "maze_po": _MAZE}
_RECORDINGS: dict[str, Callable[[], Recording]] = {"maze_fo": maze_recording, "maze_po": maze_recording}


def policy_names(task_name: str) -> tuple[str, ...]:
    """Names of the scripted players of a task.

    Raises:
        UserError: for an unknown task.
    """
    return tuple(_PLAYERS[task(task_name).name])


def make_policy(task_name: str, name: str) -> Policy:
    """The player of that name: ``random``, ``behaviour`` (the dataset's, let loose) or ``optimal`` where it exists.

    Raises:
        UserError: for an unknown task or player; it lists the known ones.
    """
    players = _PLAYERS[task(task_name).name]
    if name not in players:
        raise unknown(f"policy of {task_name}", name, players)
    return players[name]()


def recording(task_name: str) -> Recording:
    """The recipe of a task's dataset.

    Raises:
        UserError: for an unknown task.
    """
    return _RECORDINGS[task(task_name).name]()
