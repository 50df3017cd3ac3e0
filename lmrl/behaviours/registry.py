"""Scripted players and recording recipes by task and name."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Protocol, TypeAlias, cast

from lmrl.behaviours.recording import Recording
from lmrl.envs.registration import task
from lmrl.errors import UserError, unknown
from lmrl.protocols import Policy

__all__ = ["make_policy", "policy_names", "recording"]


_Players: TypeAlias = Mapping[str, Callable[[Mapping[str, Any]], Policy]]


class _Behaviours(Protocol):
    """What the module of a game's behaviours holds."""

    PLAYERS: _Players

    def recording(self, task_name: str, env: Mapping[str, Any]) -> Recording: ...


# A new game adds its module here. It is imported when it is needed: the chess rules are a package of their own.
_MODULES = {
    "maze_fo": "lmrl.behaviours.maze_recording",
    "maze_po": "lmrl.behaviours.maze_recording",
    "text_nav_fo": "lmrl.behaviours.text_nav_recording",
    "text_nav_po": "lmrl.behaviours.text_nav_recording",
    "wordle": "lmrl.behaviours.wordle_recording",
    "chess": "lmrl.behaviours.chess_recording",
    "endgames": "lmrl.behaviours.endgames_recording",
    "twenty_questions": "lmrl.behaviours.twenty_questions_recording",
    "guess_city": "lmrl.behaviours.guess_city_recording",
    "car_dealer": "lmrl.behaviours.car_dealer_recording",
}


def policy_names(task_name: str) -> tuple[str, ...]:
    """Names of the scripted players of a task; a task that was only registered has none.

    Raises:
        UserError: for an unknown task.
    """
    return tuple(_players(task_name))


def make_policy(task_name: str, name: str, env: Mapping[str, Any] | None = None) -> Policy:
    """The player of that name: ``random``, ``behaviour`` (the dataset's, let loose) or ``optimal`` where it exists.

    Args:
        task_name: name of the task.
        name: one of `policy_names`.
        env: arguments of the environment that it will play in, where they are not the task's own.

    Raises:
        UserError: for an unknown task or player; it lists the known ones.
    """
    players = _players(task_name)
    if name not in players:
        raise unknown(f"policy of {task_name}", name, players)
    return players[name](env or {})


def recording(task_name: str, env: Mapping[str, Any] | None = None) -> Recording:
    """The recipe of a task's dataset, in an environment with those arguments.

    Raises:
        UserError: for an unknown task, or one that was only registered and has no recipe.
    """
    behaviours = _behaviours(task_name)
    if behaviours is None:
        raise UserError(f"task {task_name!r} has no recipe for a dataset; give the path of one (data.init_args.path)")
    return behaviours.recording(task_name, env or {})


def _players(task_name: str) -> _Players:
    behaviours = _behaviours(task_name)
    return {} if behaviours is None else behaviours.PLAYERS


def _behaviours(task_name: str) -> _Behaviours | None:
    module = _MODULES.get(task(task_name).name)
    return None if module is None else cast(_Behaviours, import_module(module))
