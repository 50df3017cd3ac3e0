"""Policies as people name them on the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmrl.behaviours import make_policy, policy_names
from lmrl.envs.registration import Task
from lmrl.errors import UserError
from lmrl.modules import load_policy
from lmrl.policies.human import HumanPolicy
from lmrl.protocols import Policy

__all__ = ["is_trained", "named_policy"]


def named_policy(name: str, task: Task, env: Mapping[str, Any] | None = None, **settings: Any) -> Policy:
    """The policy of that name: a scripted player, ``human``, or a run folder or checkpoint.

    Args:
        name: one of the task's players (``random``, ``behaviour``, ...), ``human``, or a path.
        task: what it will play.
        env: arguments of the environment that it will play in.
        settings: decoding settings over those of the checkpoint.

    Raises:
        UserError: there is neither a player nor a file of that name; or a setting for a player without a model.
    """
    if is_trained(name, task):
        return load_policy(name, task, **settings)
    if settings:
        raise UserError(f"{', '.join(settings)} can be set for a trained policy only, not for {name!r}")
    return HumanPolicy() if name == "human" else make_policy(task.name, name, env)


def is_trained(name: str, task: Task) -> bool:
    """Whether the name is that of a run folder or checkpoint, not of a player of the task.

    Raises:
        UserError: it is neither.
    """
    players = [*policy_names(task.name), "human"]
    if name not in players and not Path(name).exists():
        raise UserError(f"no policy {name!r}: there is no such run folder or checkpoint; known: {', '.join(players)}")
    return name not in players
