"""Episodes as a `datasets.Dataset` and back, and as conversations for TRL's `GRPOTrainer` and `SFTTrainer`."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from transformers.utils.chat_template_utils import get_json_schema

from lmrl.data.records import SCHEMA, episode_from_row, table_of
from lmrl.data.storage import read_episodes
from lmrl.envs.outside import named_task
from lmrl.envs.registry import chat_prompt
from lmrl.errors import UserError
from lmrl.integrations.trl.tools import TaskEnvironment, answer, opening
from lmrl.policies.chat.policy import introduction
from lmrl.rollout import episode_seed
from lmrl.types import Episode

__all__ = [
    "conversations_dataset",
    "datasets_package",
    "episodes_dataset",
    "episodes_from_dataset",
    "prompts_dataset",
    "seeds_dataset",
]

if TYPE_CHECKING:
    from datasets import Dataset


_BLOCK = 512
"""Episodes that are turned into a table at once."""


def episodes_dataset(episodes: str | os.PathLike[str] | Iterable[Episode]) -> "Dataset":
    """Return episodes as a dataset in memory, one row each, in their order.

    Its columns are those of our Parquet files (`lmrl.data.records.SCHEMA`), so `read_episodes` reads what
    ``dataset.to_parquet`` writes. For an episode of ``T`` turns they are ``task``, ``observations`` (``T + 1`` texts),
    ``actions`` (``T`` texts), ``rewards``, ``terminated``, ``truncated``, ``seed``, ``info`` (JSON), and, for episodes
    of a model, ``action_ids``, ``action_logprobs`` and ``action_values`` (one list per turn) and ``final_value``.

    Args:
        episodes: file of episodes (see `lmrl.data.storage.write_episodes`), or episodes.

    Raises:
        UserError: `datasets` is missing; for a file as `lmrl.data.storage.read_episodes`; a text is not valid Unicode.
    """
    package = datasets_package()
    source = read_episodes(episodes)
    tables = [SCHEMA.empty_table()]
    count = 0
    for block in iter(lambda: list(islice(source, _BLOCK)), []):
        tables.append(table_of(block, count))
        count += len(block)
    dataset: Dataset = package.Dataset(pa.concat_tables(tables))
    return dataset


def episodes_from_dataset(dataset: Iterable[Mapping[str, Any]]) -> Iterator[Episode]:
    """The episodes of a dataset with the columns of `episodes_dataset`, in order; other columns are left out.

    Episodes that were read from a file come back equal. Of others, tuples in `Episode.info` come back as lists, and
    log-probabilities and values as float32.

    Args:
        dataset: a ``datasets.Dataset``, an ``IterableDataset``, or rows.

    Raises:
        UserError: a column is missing or of the wrong kind; it names the row, from 1.
    """
    # A dataset may be set to give tensors instead of lists.
    plain = dataset.with_format(None) if hasattr(dataset, "with_format") else dataset
    for number, row in enumerate(plain, start=1):
        known = {name: row[name] for name in SCHEMA.names if name in row}
        yield episode_from_row(known, f"row {number} of the dataset")


def datasets_package() -> ModuleType:
    """The package `datasets`.

    Raises:
        UserError: it is missing.
    """
    try:
        return import_module("datasets")
    except ImportError as error:
        raise UserError(f"datasets of episodes need the package datasets ({error}): pip install 'lmrl[trl]'") from error


_CALL = 'Make each move by calling the tool "act", one move at a time, until the game is over.'
_OF_PROMPTS = 2  # keeps these episodes apart from those of evaluations and rounds with the same seed


def prompts_dataset(name: str, size: int, seed: int = 0, **env: Any) -> "Dataset":
    """The ``train_dataset`` or ``eval_dataset`` of `GRPOTrainer` for a task.

    Columns: ``prompt`` (a system message and a user message: the rules), ``seed`` (of the episode) and ``environment``
    (the name of the task: with a dictionary of factories under those names, one run may mix tasks).

    Args:
        name: name of the task.
        size: number of rows.
        seed: other seeds give other episodes, and so do evaluations with the same seed.
        env: arguments of the environment, where the rules depend on them.

    Raises:
        UserError: `datasets` is missing, for an unknown task or one without prompts, or a size below 1.
    """
    # The user names the task here. A file of episodes does not: `conversations_dataset` opens no address.
    prompt = _prompt(named_task(name).name, env)
    rows = []
    for start in _seeds(size, seed):
        rows.append({"prompt": prompt, "seed": start, "environment": name})
    dataset: Dataset = datasets_package().Dataset.from_list(rows)
    return dataset


def seeds_dataset(size: int, seed: int = 0) -> "Dataset":
    """The ``train_dataset`` or ``eval_dataset`` of `GRPOTrainer` where `lmrl.integrations.trl.TextRollout` plays.

    One column, ``prompt``: the seed of an episode as text.

    Args:
        size: number of rows.
        seed: other seeds give other episodes; the same one gives those of `prompts_dataset`.

    Raises:
        UserError: `datasets` is missing, or a size below 1.
    """
    prompts = list(map(str, _seeds(size, seed)))
    dataset: Dataset = datasets_package().Dataset.from_dict({"prompt": prompts})
    return dataset


def conversations_dataset(episodes: str | os.PathLike[str] | Iterable[Episode], **env: Any) -> "Dataset":
    """Return a ``train_dataset`` of `SFTTrainer`: episodes as conversations in the form of GRPO, to start GRPO from.

    Columns: ``messages`` (those of `prompts_dataset`, then a call of ``act`` and the tool's answer for each turn, and
    an empty message of the assistant, who has nothing to add) and ``tools`` (JSON). The last answer says that the game
    is over, also where somebody else cut the episode.

    Args:
        episodes: file of episodes (see `lmrl.data.storage.write_episodes`), or episodes.
        env: arguments of the environment, as in `prompts_dataset`.

    Raises:
        UserError: `datasets` is missing, for a task without prompts, for a file as `lmrl.data.storage.read_episodes`.
    """
    tools = json.dumps([get_json_schema(TaskEnvironment.act)])
    rows = []
    for episode in read_episodes(episodes):
        rows.append({"messages": _conversation(episode, env), "tools": tools})
    dataset: Dataset = datasets_package().Dataset.from_list(rows)
    return dataset


def _seeds(size: int, seed: int) -> list[int]:
    if size < 1:
        raise UserError(f"size must be at least 1, got {size}")
    return [episode_seed(seed, index, _OF_PROMPTS) for index in range(size)]


def _prompt(name: str, env: Mapping[str, Any]) -> list[dict[str, Any]]:
    chat = chat_prompt(name)
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
        # The model reads and writes moves in the spelling of the prompt, which need not be that of the data.
        readable = chat_prompt(episode.task).own_spelling(action)
        call = {"type": "function", "function": {"name": "act", "arguments": {"action": readable}}}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "act", "content": answer(episode.task, text, turn == len(episode))},
        ]
    return [*messages, {"role": "assistant", "content": ""}]
