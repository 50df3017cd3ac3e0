"""From a run, a checkpoint or a model folder to the policy that it plays."""

import importlib
from pathlib import Path
from typing import Any, TypeVar

import lightning as L

from lmrl.envs.registration import Task
from lmrl.errors import UserError
from lmrl.models.checkpoint import in_one_file, read_checkpoint
from lmrl.models.runs import resolve_checkpoint
from lmrl.modules.base import LanguageModule
from lmrl.protocols import Policy

__all__ = ["load_module", "load_policy"]

M = TypeVar("M", bound=L.LightningModule)


def load_module(path: str | Path, *, allow_pickle: bool = False, trust_remote_code: bool = False) -> LanguageModule:
    """The module in a checkpoint (or in a run's best one), with the class that trained it.

    Args:
        path: run folder, ``.ckpt`` file.
        allow_pickle: also read a checkpoint that holds other objects than tensors and plain values. Reading such a file
            can run any code.
        trust_remote_code: run code that its tokenizer brings from a hub. What the checkpoint says about it does not
            count.

    Raises:
        UserError: if there is no checkpoint, it is not one of ours, it is pickled, or it belongs to another tokenizer.
    """
    file = resolve_checkpoint(path)
    kind = _class(file, allow_pickle)
    if not issubclass(kind, LanguageModule):
        raise UserError(f"{file} holds a {kind.__name__}, which is no language model")
    return _load(file, kind, allow_pickle, trust_remote_code=trust_remote_code)


def _load(file: Path, kind: type[M], allow_pickle: bool, **settings: Any) -> M:
    with in_one_file(file, allow_pickle) as found:
        loaded = kind.load_from_checkpoint(found, map_location="cpu", weights_only=not allow_pickle, **settings)
    return loaded.eval()


def _class(file: Path, allow_pickle: bool) -> type[L.LightningModule]:
    """The class that a checkpoint names: only one that plays is ever made."""
    path = str(read_checkpoint(file, allow_pickle)["lmrl"]["class"])
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{file} was written by {path!r}, which cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, L.LightningModule) and hasattr(kind, "policy")):
        raise UserError(f"{file} is not a checkpoint of lmrl: {path!r} is no LightningModule with a policy")
    return kind


def load_policy(
    path: str | Path,
    task: Task,
    *,
    rerank: bool = False,
    allow_pickle: bool = False,
    device: str = "cpu",
    **settings: Any,
) -> Policy:
    """The policy of a run or checkpoint, ready to play ``task``.

    Args:
        path: run folder, ``.ckpt`` file.
        task: what it will play; gives the longest action.
        rerank: choose among the task's actions by their scores instead of saying one token by token; greedy unless
            ``temperature`` says otherwise. Makes illegal actions impossible, which flatters.
        allow_pickle: as of `load_module`.
        device: where its model computes.
        **settings: decoding settings (``temperature``, ``top_k``, ``top_p``, ``beta``, ``compile``) over the module's
            own.

    Raises:
        UserError: there is no such run, or a setting does not go with ``rerank``.
    """
    if rerank:
        if settings.get("compile"):
            raise UserError("rerank reads whole actions and has no decode steps: compile must be left out")
        if not task.actions:
            raise UserError(f"rerank needs a task whose actions can be listed; those of {task.name} cannot")
        return load_module(path, allow_pickle=allow_pickle).to(device).reranker(task.actions, **settings)
    file = resolve_checkpoint(path)
    kind = _class(file, allow_pickle)
    safe = {"trust_remote_code": False} if issubclass(kind, LanguageModule) else {}
    module: Any = _load(file, kind, allow_pickle, **safe).to(device)
    policy: Policy = module.policy(**{"max_new_tokens": task.max_action_tokens, **settings})
    return policy
