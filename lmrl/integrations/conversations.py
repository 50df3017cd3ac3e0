"""Conversations for TRL: prompts with which `GRPOTrainer` begins episodes, and recorded episodes for `SFTTrainer`."""

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from transformers.utils.chat_template_utils import get_json_schema

from lmrl.episode import Episode
from lmrl.errors import UserError, unknown
from lmrl.integrations.hf_datasets import datasets_package
from lmrl.integrations.trl import TaskEnvironment, answer, opening
from lmrl.policies.chat_prompts import introduction
from lmrl.policies.chat_tasks import CHAT_TASKS
from lmrl.rollout import episode_seed
from lmrl.storage import read_episodes

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["conversations_dataset", "prompts_dataset"]

_CALL = 'Make each move by calling the tool "act", one move at a time, until the game is over.'
_OF_PROMPTS = 2  # keeps these episodes apart from those of evaluations and rounds with the same seed


def prompts_dataset(name: str, size: int, seed: int = 0, **env: Any) -> "Dataset":
    """The ``train_dataset`` or ``eval_dataset`` of `GRPOTrainer` for a task.

    Columns: ``prompt`` (a system message and a user message: the rules), ``seed`` (of the episode) and ``environment``
    (the name of the task: with a dictionary of factories under those names, one run may mix tasks).

    Args:
        name: of the task.
        size: number of rows.
        seed: other seeds give other episodes, and so do evaluations with the same seed.
        env: arguments of the environment, where the rules depend on them (Wordle's vocabulary).

    Raises:
        UserError: `datasets` is missing, for a task without prompts, or a size below 1.
    """
    if size < 1:
        raise UserError(f"size must be at least 1, got {size}")
    prompt = _prompt(name, env)
    rows = [{"prompt": prompt, "seed": episode_seed(seed, i, _OF_PROMPTS), "environment": name} for i in range(size)]
    dataset: Dataset = datasets_package().Dataset.from_list(rows)
    return dataset


def conversations_dataset(episodes: str | os.PathLike[str] | Iterable[Episode], **env: Any) -> "Dataset":
    """A ``train_dataset`` of `SFTTrainer`: what was said as if `GRPOTrainer` had played it, to start GRPO from.

    Columns: ``messages`` (those of `prompts_dataset`, then a call of ``act`` and the tool's answer for each turn, and
    an empty message of the assistant, who has nothing to add) and ``tools`` (JSON). The last answer says that the game
    is over, also where somebody else cut the episode.

    Args:
        episodes: file as of `lmrl.storage.write_episodes`, or episodes.
        env: arguments of the environment, as in `prompts_dataset`.

    Raises:
        UserError: `datasets` is missing, for a task without prompts, for a file as `lmrl.storage.read_episodes`.
    """
    source = read_episodes(episodes) if isinstance(episodes, (str, os.PathLike)) else episodes
    tools = json.dumps([get_json_schema(TaskEnvironment.act)])
    rows = [{"messages": _conversation(episode, env), "tools": tools} for episode in source]
    dataset: Dataset = datasets_package().Dataset.from_list(rows)
    return dataset


def _prompt(name: str, env: Mapping[str, Any]) -> list[dict[str, Any]]:
    if name not in CHAT_TASKS:
        raise unknown("task with prompts", name, CHAT_TASKS)
    chat = CHAT_TASKS[name]
    rules = introduction(chat, chat.appendix(env), (), "plain")
    return [
        {"role": "system", "content": f"You are {chat.role}. {_CALL}"},
        {"role": "user", "content": f"{rules}\n\nNow you play:\n"},
    ]


def _conversation(episode: Episode, env: Mapping[str, Any]) -> list[dict[str, Any]]:
    system, user = _prompt(episode.task, env)
    first, *later = episode.observations
    messages = [system, {**user, "content": user["content"] + opening(episode.task, first)}]
    for turn, (action, text) in enumerate(zip(episode.actions, later, strict=True), start=1):
        said = CHAT_TASKS[episode.task].own_spelling(action)
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": said}}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "act", "content": answer(episode.task, text, turn == len(episode))},
        ]
    return [*messages, {"role": "assistant", "content": ""}]
