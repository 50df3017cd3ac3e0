"""Who plays and who answers when a dataset is recorded."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from lmrl import policies  # a scripted player needs no torch: each is imported when it is named
from lmrl.behaviours.recording import Recording
from lmrl.behaviours.registry import make_policy, recording
from lmrl.envs.base import TextEnv
from lmrl.envs.registration import task
from lmrl.errors import UserError
from lmrl.partners import environment
from lmrl.protocols import Policy

__all__ = ["Cast", "cast_of"]

Cast = tuple[Recording, Callable[[], TextEnv]]
"""The recipe, and something that makes the environments."""

_SLOTS = 64


def cast_of(task_name: str, env: Mapping[str, Any], behaviour: str | None = None) -> Cast:
    """The recipe of a task's dataset, its player replaced by another one if wanted.

    Models are loaded once in a process.

    Args:
        task_name: name of the task.
        env: arguments of the environment; ``partner`` may name the second speaker.
        behaviour: ``lm:PATH`` (a run folder, a model folder or a hub id), or a scripted player's name; None: the one of
            the recipe.

    Raises:
        UserError: for an unknown player, or a model that is not there.
    """
    return _cast(task_name, json.dumps(dict(env), sort_keys=True), behaviour)


@lru_cache(maxsize=2)
def _cast(task_name: str, arguments: str, behaviour: str | None) -> Cast:
    env = json.loads(arguments)
    recipe = recording(task_name, env)
    if behaviour is not None:
        recipe = replace(recipe, policy=_player(task_name, behaviour, env), stop=None)
    return recipe, environment(task_name, env)


def _player(task_name: str, name: str, env: Mapping[str, Any]) -> Policy:
    kind, _, path = name.partition(":")
    if kind != "lm":
        return make_policy(task_name, name, env)
    if not path:
        raise UserError(f"behaviour must be lm:PATH or the name of a scripted player, got {name!r}")
    row = task(task_name)
    return policies.load_lm_policy(path, row.last_texts, row.max_action_tokens, temperature=1.0, slots=_SLOTS)
