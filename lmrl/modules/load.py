"""From a run, a checkpoint or a model folder to the policy that it plays."""

import importlib
from pathlib import Path
from typing import Any

import torch

from lmrl.envs.registration import Task
from lmrl.errors import UserError
from lmrl.models.runs import resolve_checkpoint
from lmrl.modules.base import LanguageModule
from lmrl.protocols import Policy

__all__ = ["load_module", "load_policy"]


def load_module(path: str | Path) -> LanguageModule:
    """The module in a checkpoint (or in a run's best one), with the class that trained it.

    Raises:
        UserError: if there is no checkpoint, it is not one of ours, or it belongs to another tokenizer.
    """
    file = resolve_checkpoint(path)
    try:
        record = torch.load(file, map_location="cpu", weights_only=True)["lmrl"]
        module, _, name = str(record["class"]).rpartition(".")
        kind = getattr(importlib.import_module(module), name)
    except Exception as error:  # unpickling a file that is something else can end in any exception
        raise UserError(f"{file} is not a checkpoint of lmrl: {type(error).__name__}: {error}") from error
    loaded: LanguageModule = kind.load_from_checkpoint(file, map_location="cpu", weights_only=True)
    return loaded.eval()


def load_policy(path: str | Path, task: Task, *, rerank: bool = False, **settings: Any) -> Policy:
    """The policy of a run or checkpoint, ready to play ``task``.

    Args:
        path: run folder, ``.ckpt`` file.
        task: what it will play; gives the longest action.
        rerank: choose among the task's actions by their scores instead of saying one token by token; greedy unless
            ``temperature`` says otherwise. Makes illegal actions impossible, which flatters.
        **settings: decoding settings (``temperature``, ``top_k``, ``top_p``, ``beta``) over the module's own.
    """
    module = load_module(path)
    if rerank:
        if not task.actions:
            raise UserError(f"rerank needs a task whose actions can be listed; those of {task.name} cannot")
        return module.reranker(task.actions, **settings)
    return module.policy(**{"max_new_tokens": task.max_action_tokens, **settings})
