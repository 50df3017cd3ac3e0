"""Chat models as players, as people name them on the command line: ``chat:MODEL`` and ``local:PATH``."""

import inspect
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from lmrl.data.examples import first_episodes
from lmrl.data.reading import read_dataset
from lmrl.envs.registration import Task
from lmrl.errors import unknown
from lmrl.models.chat import ChatClient
from lmrl.models.chat_local import LocalChat
from lmrl.policies.chat import ChatPolicy, Speaker
from lmrl.policies.chat_tasks import CHAT_TASKS

__all__ = ["chat_player", "is_chat"]

_SPEAKERS: Mapping[str, Callable[..., Speaker]] = {"chat": ChatClient, "local": LocalChat}
_MAX_TOKENS = 512
_POOL = 1_000
"""Episodes of a given file among which the best are found."""


def is_chat(name: str) -> bool:
    """Whether a policy of that name is a chat model."""
    kind, _, model = name.partition(":")
    return kind in _SPEAKERS and bool(model)


def chat_player(
    name: str,
    task: Task,
    env: Mapping[str, Any] | None = None,
    *,
    temperature: float | None = None,
    reply: str = "json",
    examples: str | None = None,
    **settings: Any,
) -> ChatPolicy:
    """A chat model that plays, with the published settings of the task where nothing else is said.

    Args:
        name: ``chat:MODEL`` at an OpenAI-compatible endpoint, ``local:PATH`` on this machine.
        task: what it will play.
        env: arguments of the environment that it will play in.
        temperature: of sampling; None: the task's.
        reply: ``json`` or ``plain``.
        examples: file of episodes from which the examples are taken; None: the task's dataset.
        settings: of `lmrl.models.chat.ChatClient` or `lmrl.models.chat_local.LocalChat`.

    Raises:
        UserError: for an unknown setting, and as those.
    """
    kind, _, model = name.partition(":")
    speaker = _SPEAKERS[kind]
    known = [setting for setting in inspect.signature(speaker).parameters if setting not in ("model", "path")]
    for setting in settings:
        if setting not in known:
            raise unknown(f"setting of {kind} players", setting, [*known, "reply", "examples"])
    episodes = first_episodes(task.name) if examples is None else list(islice(read_dataset(examples, task.name), _POOL))
    chosen = CHAT_TASKS[task.name].temperature if temperature is None else temperature
    made = speaker(model, **{"max_tokens": _MAX_TOKENS, **settings, "temperature": chosen})
    return ChatPolicy(made, task.name, episodes, reply, env)
