"""Load the module or the policy of a run, a checkpoint or a model folder."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import lightning as L
import torch

from lmrl.checkpoints.export import MANIFEST, read_manifest
from lmrl.checkpoints.reading import read_checkpoint, read_made_with, resolve_run
from lmrl.checkpoints.saving import plain_arguments, read_folder, recorded_base
from lmrl.envs import registry
from lmrl.envs.task import Task
from lmrl.errors import UserError, in_one_line
from lmrl.models.base_model import held_with_base
from lmrl.models.folders import Held, check_architecture, limited_weights, weights_held
from lmrl.models.gguf import is_gguf
from lmrl.models.tokenizer import BUNDLED, load_tokenizer
from lmrl.modules.base import LanguageModule
from lmrl.types import LoadedPolicy, Policy
from lmrl.utils.lazy import load
from lmrl.utils.plugins import algorithm_packages

__all__ = [
    "TrainedFile",
    "device_of",
    "find_trained",
    "load_module",
    "load_trained",
    "longest_action",
    "variables_before",
]

M = TypeVar("M", bound=L.LightningModule)


def device_of(name: str) -> torch.device:
    """Return the device of this name.

    Raises:
        UserError: models cannot compute there.
    """
    message = f"unknown device {name!r}; take cpu, cuda, cuda:1 or another one of torch"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(message) from error
    if device.type == "meta":  # tensors there have shapes and no numbers
        raise UserError(message)
    if device.type == "mps":
        raise UserError("Apple's GPU (mps) cannot compute in float64, which sampling needs: take cpu")
    return device


def load_module(path: str | Path, *, allow_pickle: bool = False, trust_remote_code: bool = False) -> LanguageModule:
    """Load the module in a checkpoint (or in a run's best one) or exported folder, with the class that trained it.

    Args:
        path: run folder, ``.ckpt`` file, exported folder (``models/mine``, ``runs/maze_fo/ilql/best``),
            ``zoo:TASK/NAME``.
        allow_pickle: also read a checkpoint that holds other objects than tensors and plain values. Reading such a file
            can run any code.
        trust_remote_code: run code that its tokenizer brings from a hub, whatever the checkpoint's own setting.

    Raises:
        UserError: if there is no checkpoint, it is damaged or not one of ours, it is pickled, it names a class that is
            neither of this package nor imported (nor in a module of ``$LMRL_MODULES``), or it belongs to another
            tokenizer.
    """
    file = resolve_run(path)
    content = _read_content(file, allow_pickle)
    kind = _module_class(file, content)
    if not issubclass(kind, LanguageModule):
        raise UserError(f"{file} holds a {kind.__name__}, which is no language model")
    return _build_module(file, content, kind, trust_remote_code=trust_remote_code)


def _read_content(file: Path, allow_pickle: bool) -> dict[str, Any]:
    """Return a checkpoint's content; for an exported folder the result of `read_manifest`, under the same entry."""
    if (file / MANIFEST).is_file():
        return {"lmrl": read_manifest(file)}
    return read_checkpoint(file, allow_pickle, weights=True)


def _module_class(file: Path, content: Mapping[str, Any]) -> type[L.LightningModule]:
    """Return the class that a checkpoint names: one of lmrl, or one whose module the user has imported or listed."""
    class_path = content["lmrl"].get("class")
    if not isinstance(class_path, str):
        raise UserError(f"{file} is damaged: the name of its class must be a text, got {class_path!r:.60}")
    home, _, name = class_path.rpartition(".")
    if home in algorithm_packages() and not name.startswith("_") and hasattr(load(home), name):
        kind = getattr(load(home), name)
    else:
        # A checkpoint may not import a module of its choice: the user has imported or listed it.
        for module in _user_modules():
            try:
                load(module)
            except ImportError as error:
                raise UserError(
                    f"LMRL_MODULES lists {module!r}, which cannot be imported: {error}; run the command as "
                    "PYTHONPATH=FOLDER lmrl ..., of the folder that holds it"
                ) from error
        kind = getattr(sys.modules.get(home), name, None)
    if kind is None:
        raise UserError(
            f"{file} was written by {class_path!r:.200}, which is none of {' or '.join(algorithm_packages())}; "
            f"if you trust that class, import its module before, or list it: LMRL_MODULES={home:.200}"
        )
    if not (isinstance(kind, type) and issubclass(kind, L.LightningModule) and hasattr(kind, "policy")):
        raise UserError(f"{file} is not a checkpoint of lmrl: {class_path!r:.200} is no LightningModule with a policy")
    return kind


def _user_modules() -> list[str]:
    """Return the modules that ``$LMRL_MODULES`` lists."""
    return os.environ.get("LMRL_MODULES", "").replace(",", " ").split()


def variables_before(kind: type) -> str:
    """Return the prefix of a command that reads a run of that class: empty, or ``LMRL_MODULES=my_package.algorithms ``.

    Args:
        kind: the class, which may be one of the user's own; its module must be listed then, and found.
    """
    home = kind.__module__
    if home.partition(".")[0] in ("lmrl", "__main__"):
        return ""
    variables = {
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "LMRL_MODULES": ",".join(dict.fromkeys([*_user_modules(), home])),
    }
    return "".join(f"{name}={shlex.quote(value)} " for name, value in variables.items() if value)


def _build_module(file: Path, content: dict[str, Any], kind: type[M], **settings: Any) -> M:
    """Build the module that a checkpoint or an exported folder describes, by its plain arguments and weights alone."""
    exported = (file / MANIFEST).is_file()
    where = file / MANIFEST if exported else file
    try:
        if exported:
            if not issubclass(kind, LanguageModule):
                raise UserError(f"{file} holds a {kind.__name__}, which is no language model")
            return cast(M, read_folder(file, kind, **settings))
        recorded = dict(content["hyper_parameters"])
        # Lightning adds entries with an underscore, such as the name of the class.
        recorded = {name: value for name, value in recorded.items() if not str(name).startswith("_")}
        arguments = {**_checked_arguments(kind, recorded, file), **settings}
        # A damaged file may ask for a huge model. Its size is limited by the weights that the file holds.
        held = weights_held(content["state_dict"], file)
        base = recorded_base(content["lmrl"], file)
        if base is not None:
            of_base = held_with_base(base)
            held = Held(held.tensors + of_base.tensors, held.numbers + of_base.numbers)
        check_architecture(arguments.get("architecture"), held, file)
        with limited_weights(held, file):
            module = kind(**arguments) if base is None else _build_on_base(kind, arguments, base)
        module.configure_model()
        module.on_load_checkpoint(content)
        module.load_state_dict(content["state_dict"])
    except (OSError, MemoryError):
        raise
    except UserError as error:
        if str(file) in str(error):
            raise
        raise UserError(f"{where} is damaged, or not of {kind.__name__}: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {in_one_line(error)}"
        raise UserError(f"{where} is damaged, or not of {kind.__name__}: {reason}") from error
    return module.eval()


def _build_on_base(kind: type[M], arguments: Mapping[str, Any], base: str) -> M:
    """Build a module on the model that its adapters belong to."""
    module = kind(**{**arguments, "pretrained": base, "tokenizer": None})
    tokenizer = arguments["tokenizer"]
    if isinstance(module, LanguageModule) and tokenizer not in (None, *BUNDLED):
        # The tokenizer of the run may have another chat template than that of the model, and tokens of a task.
        module.tokenizer = load_tokenizer(tokenizer)
    return module


def _checked_arguments(kind: type[L.LightningModule], arguments: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """Return the arguments that a checkpoint may choose. Raise an error for any other."""
    if issubclass(kind, LanguageModule):
        return plain_arguments({**kind.earlier_defaults, **arguments}, file)
    check: Callable[[Mapping[str, Any], Path], Mapping[str, Any]] | None
    check = getattr(kind, "arguments_of_checkpoint", None)
    return arguments if check is None else check(arguments, file)


class TrainedFile(NamedTuple):
    """Where a trained policy is, and what it learned."""

    file: Path
    """A checkpoint in one file or in shards, or an exported folder."""
    task: str | None
    """Name of the task that it was trained on; None if it is not noted there."""


def find_trained(path: str | Path, *, allow_pickle: bool = False) -> TrainedFile:
    """Find the checkpoint or exported folder that a path stands for, and read on which task it was trained.

    Args:
        path: run folder, ``.ckpt`` file, exported folder.
        allow_pickle: see `load_module`.

    Raises:
        UserError: if there is no checkpoint, it is not one of ours, or it is pickled.
    """
    is_model = (Path(path) / "config.json").is_file() and not (Path(path) / MANIFEST).is_file()
    if is_model or is_gguf(str(path)):
        raise UserError(f"{path} is a language model that lmrl has not trained: it plays as local:{path}")
    file = resolve_run(path)
    task = read_made_with(file, allow_pickle).get("task")
    return TrainedFile(file, None if task is None else str(task))


def load_trained(
    file: Path,
    task: Task,
    *,
    rerank: bool = False,
    allow_pickle: bool = False,
    device: str = "cpu",
    module: Any = None,
    **settings: Any,
) -> LoadedPolicy:
    """Load the policy of a checkpoint or exported folder; `lmrl.load_policy` also finds it by its name.

    Args:
        file: the checkpoint or folder, as `find_trained` returns it.
        task: the task that it plays; gives the longest action.
        rerank: choose among the task's actions by their scores instead of sampling tokens; greedy unless
            ``temperature`` says otherwise. Makes illegal actions impossible, which flatters.
        allow_pickle: see `load_module`.
        device: where its model computes.
        module: the module of the file, if it was loaded before; the policy then shares its weights.
        **settings: decoding settings (``temperature``, ``top_k``, ``top_p``, ``beta``, ``compile``) over the module's
            own.

    Raises:
        UserError: as `load_module`; it does not have such a setting, or not with ``rerank``.
    """
    if rerank:
        if settings.get("compile"):
            raise UserError("rerank reads whole actions and has no decode steps: compile must be left out")
        if not task.actions:
            raise UserError(f"rerank needs a task whose actions can be listed; those of {task.name} cannot")
        if module is None:
            module = load_module(file, allow_pickle=allow_pickle)
        _move_to_device(module, device_of(device))
        return _as_loaded_policy(module.reranker(task.actions, **settings), module)
    if module is None:
        content = _read_content(file, allow_pickle)
        kind = _module_class(file, content)
        safe = {"trust_remote_code": False} if issubclass(kind, LanguageModule) else {}
        module = _build_module(file, content, kind, **safe)
    _move_to_device(module, device_of(device))
    try:
        policy = module.policy(**{"max_new_tokens": longest_action(module, task), **settings})
    except (TypeError, AttributeError, KeyError) as error:  # a setting of another kind, which the file has named
        missing = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if missing and missing[1] in settings:
            raise UserError(
                f"{file} is a {type(module).__name__} run, and its policy has no {missing[1]}: leave it out"
            ) from error
        raise UserError(
            f"{file} cannot play with its settings: {type(error).__name__}: {in_one_line(error)}"
        ) from error
    return _as_loaded_policy(policy, module)


def _move_to_device(module: Any, device: torch.device) -> None:
    """Move what plays to a device. A reference model or a critic may take as much memory again, and stays."""
    stays = {}
    for name in getattr(module, "unused_in_rollouts", ()):
        if name in module._modules:
            stays[name] = module._modules.pop(name)
    try:
        module.to(device)
    finally:
        module._modules.update(stays)


def longest_action(module: Any, task: Task) -> int:
    """Return the largest number of tokens of an action: that of a task, or of the dialogues that it learned from."""
    if task is not registry.DIALOGUES:
        return task.max_action_tokens
    learned: int = getattr(module, "made_with", {}).get("max_new_tokens", task.max_action_tokens)
    return learned


def _as_loaded_policy(policy: Policy, module: Any) -> LoadedPolicy:
    """Return the policy together with its module and the hash of its weights."""
    return LoadedPolicy(policy, module, getattr(module, "made_with", {}).get("weights"))
