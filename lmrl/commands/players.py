"""Policies as people name them on the command line."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmrl.behaviours import make_policy, policy_names
from lmrl.commands.chat_players import chat_player, is_chat
from lmrl.envs.registration import Task
from lmrl.errors import UserError
from lmrl.modules import load_policy
from lmrl.policies.human import HumanPolicy
from lmrl.protocols import Policy

__all__ = ["is_trained", "named_adviser", "named_policy"]


def named_policy(
    name: str,
    task: Task,
    env: Mapping[str, Any] | None = None,
    chat: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Policy:
    """The policy of that name: a scripted player, ``human``, a chat model, or a run folder or checkpoint.

    Args:
        name: one of the task's players (``random``, ``behaviour``, ...), ``human``, ``chat:MODEL``, ``local:PATH``, or
            a path.
        task: what it will play.
        env: arguments of the environment that it will play in.
        chat: settings of a chat model, see `lmrl.commands.chat_players.chat_player`.
        settings: decoding settings over those of the checkpoint; of a chat model, ``temperature``.

    Raises:
        UserError: there is neither a player nor a file of that name; or a setting that this kind of player does not
            have.
    """
    if chat and not is_chat(name):
        raise UserError(f"chat can be set for a chat model only (chat:MODEL or local:PATH), not for {name!r}")
    if is_trained(name, task):
        return load_policy(name, task, **settings)
    refused = [setting for setting in settings if not (is_chat(name) and setting == "temperature")]
    if refused:
        raise UserError(f"{', '.join(refused)} can be set for a trained policy only, not for {name!r}")
    if is_chat(name):
        return chat_player(name, task, env, **settings, **(chat or {}))
    return HumanPolicy() if name == "human" else make_policy(task.name, name, env)


def named_adviser(name: str, task: Task, env: Mapping[str, Any] | None = None) -> Policy:
    """The policy of that name, greedy if it can be: the move that it finds best.

    Raises:
        UserError: see `named_policy`; a person cannot be asked.
    """
    if name == "human":
        raise UserError("the advisor must be a policy, not 'human'")
    settings: dict[str, Any] = {"temperature": 0.0} if is_trained(name, task) else {}
    return named_policy(name, task, env, **settings)


def is_trained(name: str, task: Task) -> bool:
    """Whether the name is that of a run folder or checkpoint, not of a player of the task.

    Raises:
        UserError: it is neither.
    """
    players = [*policy_names(task.name), "human"]
    if is_chat(name):
        return False
    if name not in players and not Path(name).exists():
        known = ", ".join([*players, "chat:MODEL", "local:PATH"])
        raise UserError(f"no policy {name!r}: there is no such run folder or checkpoint; known: {known}")
    return name not in players
