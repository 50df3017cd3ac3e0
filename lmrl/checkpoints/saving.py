"""The content of checkpoints and model folders: weights, provenance and tokenizer."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from lmrl.checkpoints.card import model_card
from lmrl.checkpoints.export import MANIFEST, export, exported_values, read_manifest, window_of
from lmrl.checkpoints.reading import resolve_pretrained
from lmrl.envs.registry import may_choose
from lmrl.errors import UserError
from lmrl.models.base_model import BaseModel, base_model, check_adapters, check_base, held_with_base
from lmrl.models.folders import CHOOSE_CODE, check_architecture, limited_weights
from lmrl.models.gguf import is_gguf
from lmrl.models.lm import build_lm, vocabulary_of
from lmrl.models.lora import adapter_base, can_be_stacked, is_adapter
from lmrl.models.sharding import class_of, is_sharded
from lmrl.models.tokenizer import BUNDLED, bundled_name, fingerprint, template_hash, warn_of_other_template
from lmrl.tokens.encoding import Window, encoder_for, invalid_ids, stop_ids
from lmrl.utils.plugins import algorithm_packages

__all__ = [
    "SavedModule", "begin_next_epoch", "check_resumed", "check_vocabulary", "class_name", "facts",
    "generation_defaults", "language_model_weights", "note_weights", "pack_checkpoint", "plain_arguments",
    "random_state", "read_entry", "read_folder", "recorded_base", "restore_base", "saves_adapters", "set_random_state",
    "write_folder",
]  # fmt: skip


class SavedModule(Protocol):
    """The interface of an algorithm for checkpoints and model folders: `lmrl.modules.LanguageModule`."""

    name: str
    earlier_defaults: Mapping[str, Any]
    tokenizer: PreTrainedTokenizerBase
    model: PreTrainedModel
    window: Window | None
    made_with: dict[str, Any]
    action_tokens: int
    base: BaseModel | None

    @property
    def hparams(self) -> Any: ...

    @property
    def prompt_line(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def global_step(self) -> int: ...

    def state_dict(self) -> dict[str, Any]: ...

    def weights_of_base(self) -> set[str]: ...

    def value_state_dict(self) -> dict[str, Tensor]: ...

    def played_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]: ...

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any: ...

    def eval(self) -> Any: ...


M = TypeVar("M", bound=SavedModule)

_PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_NOT_SETTINGS = ("pretrained", "architecture", "tokenizer", "_class_path", "_instantiator")


# A resumed run may change how it computes and where its data lies.
_MAY_CHANGE = (*_NOT_SETTINGS, "trust_remote_code", "activation_checkpointing", "compile")
_DATA_SETTINGS = ("task", "data_hash", "data_seed", "val_fraction", "batch_size", "env")


def check_resumed(module: SavedModule, checkpoint: Mapping[str, Any], processes: int) -> None:
    """Make sure that a run is resumed with its own data and settings; else what its card says would be false.

    Args:
        module: module that resumes.
        checkpoint: checkpoint of the run.
        processes: number of processes that train together now. Another number makes other batches, and loses the place
            in the data.

    Raises:
        UserError: naming what differs, or a counter of the training that is no number.
    """
    _check_counters(checkpoint.get("loops"))
    before = checkpoint["lmrl"].get("made_with", {})
    compared: list[tuple[str, Any, Any]] = [("number of processes", checkpoint["lmrl"].get("processes"), processes)]
    for name in _DATA_SETTINGS:
        compared.append((name, before.get(name), module.made_with.get(name)))
    for name, value in checkpoint.get("hyper_parameters", {}).items():
        if name not in _MAY_CHANGE and name in module.hparams:
            # A setting of None can stand for a value that follows from others, as `loss_agg_mode`.
            now = module.hparams[name]
            compared.append((name, value, getattr(module, name, None) if now is None else now))
    for name, old, new in compared:
        if old is None or new is None or old == new:  # checkpoints of earlier versions lack some
            continue
        was = "another file's" if name == "data_hash" else repr(old)
        raise UserError(
            f"the checkpoint's run has another {name} ({was}, now {new!r}): resume it as it was "
            "(--config RUN/config.yaml --resume), or start a new run from its weights with model.init_args.pretrained"
        )


def begin_next_epoch(checkpoint: dict[str, Any]) -> None:
    """Let a run that was saved at the end of an epoch go on with the next one, in place.

    Lightning would go on counting the batches of the epoch before, and cut the next epoch into other windows of
    accumulation than a run that was not interrupted.
    """
    loops = _part(_part(checkpoint, "loops"), "fit_loop")
    batches = _part(loops, "epoch_loop.batch_progress")
    epochs = _part(loops, "epoch_progress")
    if not batches.get("is_last_batch"):
        return
    total = _part(batches, "total")
    if total.get("processed") == total.get("started") != total.get("completed"):
        # Saved in the hook after the batch, before this batch, its step and its epoch were counted.
        total["completed"] = total["processed"]
        for counters in (_part(epochs, "total"), _part(epochs, "current")):
            counters["processed"] = counters["completed"] = counters.get("started", 0)
        state = _part(loops, "epoch_loop.state_dict")
        state["_batches_that_stepped"] = state.get("_batches_that_stepped", 0) + 1
    current = _part(epochs, "current")
    if current.get("ready") == current.get("completed"):
        batches["is_last_batch"] = False
        for name in ("batch_progress", "scheduler_progress", "automatic_optimization.optim_progress"):
            _set_current_to_zero(_part(loops, f"epoch_loop.{name}"))


def _part(parent: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a part of a checkpoint; an empty one where a damaged file has none."""
    part = parent.get(name)
    return part if isinstance(part, dict) else {}


def _set_current_to_zero(progress: dict[str, Any]) -> None:
    """Set the counters of the current epoch to 0, of this progress and of those in it."""
    for name, value in progress.items():
        if name == "current" and isinstance(value, dict):
            progress[name] = dict.fromkeys(value, 0)
        elif isinstance(value, dict):
            _set_current_to_zero(value)


def _check_counters(loops: Any) -> None:
    """Make sure that the counters of Lightning's loops are numbers: they may be used only hours later."""
    if not isinstance(loops, Mapping):
        return
    for name, value in loops.items():
        if name in ("ready", "started", "processed", "completed") and not (isinstance(value, int) and value >= 0):
            raise UserError(f"the checkpoint is damaged: the counter {name} of its loops is {value!r:.40}")
        _check_counters(value)


def facts(module: SavedModule) -> dict[str, Any]:
    """Return the facts of a model card: training, context, and the settings of the algorithm."""
    settings = {name: value for name, value in module.hparams.items() if name not in _NOT_SETTINGS}
    window = module.window
    reads: dict[str, Any] = {}
    if window is not None:
        reads = {"reads_texts": window.texts, "reads_tokens": window.tokens, "rendering": window.rendering}
        if window.rendering == "chat":
            reads["chat_template"] = template_hash(module.tokenizer)
            reads["header"] = encoder_for(module.tokenizer, window).header
        if window.system:
            reads["system"] = window.system
        if window.bos:
            reads["bos"] = True
    if module.prompt_line:
        reads["told"] = module.prompt_line
    return {"algorithm": module.name, **_published(module.made_with), **reads, **settings}


def _published(made_with: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts without the folders above the start, if its path is absolute: they appear in published files."""
    start = made_with.get("starts_from")
    if start is None or not Path(start).is_absolute():
        return dict(made_with)
    return {**made_with, "starts_from": Path(start).name}


def generation_defaults(module: SavedModule) -> GenerationConfig:
    """Sampling as our policies do it: to the end of a line or turn, from the whole distribution, no special ids."""
    tokenizer = module.tokenizer
    encoder = encoder_for(module.tokenizer, module.window)
    invalid = invalid_ids(tokenizer, module.model.config.vocab_size, module.device, encoder.end)
    return GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        top_k=0,
        max_new_tokens=module.made_with.get("max_new_tokens", 32),
        eos_token_id=sorted(stop_ids(encoder)),
        # As in the saved tokenizer. Without one, `generate` pads with the first of the ids that end an action.
        pad_token_id=tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
        suppress_tokens=invalid.nonzero().flatten().tolist(),
    )


def class_name(kind: type) -> str:
    """Return the name of a class in checkpoints: by the package that exports it, wherever in there it is."""
    for package in algorithm_packages():
        if kind.__module__.startswith(f"{package}."):
            return f"{package}.{kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def plain_arguments(arguments: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The arguments of a checkpoint as far as it may choose: no model to start from, and a tokenizer that is bundled.

    The tokenizer of another model is taken from the folder that a run keeps next to its checkpoint.

    Raises:
        UserError: it names a model to start from, a tokenizer that is neither bundled nor next to it, or a path in the
            arguments of its task tokens.
    """
    if arguments.get("pretrained") is not None:
        raise UserError(f"{file} names a model to start from, which none of ours does: {arguments['pretrained']!r:.80}")
    named = arguments.get("tokenizer")
    run_folder = file.with_suffix("")
    if named not in (None, *BUNDLED):
        if not (run_folder / "tokenizer_config.json").is_file():
            raise UserError(
                f"{file} was trained with the tokenizer {named!r:.80}, which a checkpoint alone cannot load: keep the "
                f"folder {run_folder.name} next to it"
            )
        named = str(run_folder)
    task_tokens = arguments.get("task_tokens")
    if isinstance(task_tokens, Mapping):
        task = str(task_tokens.get("name"))
        for argument, value in task_tokens.items():
            if argument != "name" and not may_choose(task, argument, value):
                raise UserError(
                    f"{file} sets {argument} of task {task} to {value!r:.80} in its task_tokens: a file cannot choose "
                    "paths, programs and what is not listed"
                )
    return {**arguments, "pretrained": None, "tokenizer": named, "architecture": _shape(arguments.get("architecture"))}


def _shape(architecture: Any) -> Any:
    """A configuration, and those inside of it, without what chooses code."""
    if not isinstance(architecture, Mapping):
        return architecture or {}
    shape = {}
    for name, value in architecture.items():
        if not str(name).startswith("_") and name not in CHOOSE_CODE:
            shape[name] = _shape(value) if isinstance(value, Mapping) else value
    return shape


def pack_checkpoint(module: SavedModule, checkpoint: dict[str, Any]) -> None:
    """Take every path of the run that a module started from out of its checkpoint, and put in what loading needs.

    The weights of `SavedModule.base` are left out, unless they are in shards: those are saved and read as a whole.

    Args:
        module: module whose checkpoint it is.
        checkpoint: changed in place; gets an entry ``lmrl``.
    """
    checkpoint["hyper_parameters"] = _arguments(module, checkpoint.get("hyper_parameters", module.hparams))
    if not is_sharded(module):  # else `save_run` has noted the hash of the full weights
        note_weights(module)
    checkpoint["lmrl"] = _entry(module, checkpoint.get("global_step"))
    left_out = set() if is_sharded(module) else module.weights_of_base()
    if module.base is not None and left_out:
        kept = {name: tensor for name, tensor in checkpoint["state_dict"].items() if name not in left_out}
        checkpoint["state_dict"] = kept
        # A run in half precision has rounded the weights.
        precision = str(module.model.dtype).removeprefix("torch.")
        checkpoint["lmrl"]["base"] = {"name": module.base.name, "sha256": module.base.sha256, "precision": precision}


def recorded_base(entry: Mapping[str, Any], file: Path) -> str | None:
    """Return the model whose weights a checkpoint leaves out; None: it holds all weights.

    Args:
        entry: the checkpoint's entry ``lmrl``.
        file: the checkpoint.

    Raises:
        UserError: the model is gone or has changed, or the entry is damaged.
    """
    base = entry.get("base")
    if base is None:
        return None
    recorded = base if isinstance(base, dict) else {}
    name = recorded.get("name")
    sha256 = recorded.get("sha256")
    if not (isinstance(name, str) and isinstance(sha256, str) and str(recorded.get("precision")) in _PRECISIONS):
        raise UserError(f"{file} is damaged: it does not say which model its adapters belong to")
    check_base(file, name, sha256)
    return name


def restore_base(module: SavedModule, checkpoint: Mapping[str, Any]) -> None:
    """Put the weights back that `pack_checkpoint` has left out; the module has them from its `pretrained`.

    Args:
        module: module that is about to read the checkpoint.
        checkpoint: its weights are completed in place.

    Raises:
        UserError: the module was made from another model.
    """
    base = checkpoint["lmrl"].get("base")
    if base is None:
        return
    if module.base is None or module.base.sha256 != base["sha256"]:
        other = "" if module.base is None else f", and the files of {module.base.name} are others"
        raise UserError(
            f"the checkpoint holds adapters of the model {base['name']} without its weights{other}: give that model as "
            "model.init_args.pretrained"
        )
    weights = checkpoint["state_dict"]
    own = module.state_dict()
    for name in module.weights_of_base():
        if name not in weights:
            weights[name] = own[name].to(_PRECISIONS[base["precision"]])


def _arguments(module: SavedModule, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with which the module is made again, without another file."""
    named = given["tokenizer"] or module.tokenizer.name_or_path
    return {
        **given,
        "pretrained": None,
        "architecture": _plain(module.model.config.to_diff_dict()),
        "tokenizer": bundled_name(module.tokenizer) or named,
    }


def _entry(module: SavedModule, steps: int | None) -> dict[str, Any]:
    """Return the entry that loading needs in addition to the arguments."""
    reads_chat = module.window is not None and module.window.rendering == "chat"
    return {
        "class": class_name(class_of(module)),
        "tokenizer": fingerprint(module.tokenizer),
        "chat_template": template_hash(module.tokenizer) if reads_chat else None,
        "window": None if module.window is None else asdict(module.window),
        "made_with": {**module.made_with, "steps": steps},
        "action_tokens": module.action_tokens,
    }


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the generators from which dropout draws."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Have these generators go on from states that `random_state` has returned."""
    torch.set_rng_state(states["cpu"].cpu())
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu(), device)


def note_weights(module: SavedModule, weights: Mapping[str, Tensor] | None = None) -> None:
    """Keep in ``made_with["weights"]`` a hash of the weights that play: the language model and the values, as float32.

    Checkpoints, exported folders and scores hold it, so that scores can be matched with weights.

    Args:
        module: module whose weights these are.
        weights: the full state dict, where the module itself holds a share of it.
    """
    played = dict(module.value_state_dict())
    if weights is None:
        for name, tensor in module.model.state_dict().items():
            played[f"model.{name}"] = tensor
    else:
        # Only the first process has the full state dict; it is empty on the others.
        full = module.played_weights(weights)
        played = {name: t for name, t in full.items() if name in played or name.startswith("model.")}
    digest = hashlib.sha256()
    for name in sorted(played):
        # A copy: memory that numpy has seen cannot be gathered by FSDP any more.
        tensor = played[name].detach().to("cpu", torch.float32, copy=True).contiguous()
        digest.update(f"{name} {list(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    module.made_with["weights"] = digest.hexdigest()[:32]


def language_model_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the language model in the state dict of a module, under the model's own names."""
    return {name.removeprefix("model."): tensor for name, tensor in weights.items() if name.startswith("model.")}


def check_vocabulary(module: SavedModule) -> None:
    """Make sure that a model has an embedding for every id of its tokenizer.

    Raises:
        UserError: it has fewer.
    """
    ids = len(module.tokenizer)
    if vocabulary_of(module.model) < ids:
        raise UserError(f"architecture.vocab_size must be at least {ids}, the number of ids of the tokenizer")


def read_entry(module: SavedModule, checkpoint: Mapping[str, Any]) -> None:
    """Read the entry that `pack_checkpoint` put into a checkpoint.

    Raises:
        UserError: the checkpoint is one of another algorithm, or its weights belong to another vocabulary.
    """
    entry = checkpoint["lmrl"]
    written = str(entry["class"])
    own = class_name(class_of(module))
    packages = algorithm_packages()
    # A class of the user's own may resume a run of the class that it extends.
    if written != own and written.startswith(packages) and own.startswith(packages):
        raise UserError(
            f"the checkpoint is one of {written}, not of {own}: to start from its weights, give its run folder as "
            "model.init_args.pretrained instead of ckpt_path"
        )
    ours = fingerprint(module.tokenizer)
    theirs = entry["tokenizer"]
    if ours != theirs:
        raise UserError(f"the checkpoint was trained with another tokenizer ({theirs}) than this one ({ours})")
    check_vocabulary(module)
    window = window_of(entry, "the checkpoint")
    if window is not None:
        module.window = window
    warn_of_other_template(module.tokenizer, entry.get("chat_template"))
    module.made_with = dict(entry.get("made_with", {}))
    module.action_tokens = int(entry.get("action_tokens", 0))


def write_folder(
    module: SavedModule,
    folder: Path,
    scores: Mapping[str, Any] | None,
    weights: Mapping[str, Tensor] | None,
    merge: bool,
) -> None:
    """Write a folder that `transformers` loads without this package, and what was learned next to the model.

    Args:
        module: module to write.
        folder: replaced if it exists.
        scores: content of ``scores.json``, for the model card.
        weights: the full state dict, where the module itself holds a share of it (see `full_state_dict`).
        merge: write a whole model of a run with adapters; else the adapters alone, for `peft`.

    Raises:
        UserError: if adapters alone are to be written and there are none, or they do not make the model.
    """
    values = module.value_state_dict()
    rendering = "text" if module.window is None else module.window.rendering
    settings = {"beta": getattr(module, "beta", None), "lora": module.hparams["lora"], "rendering": rendering}
    model_weights: dict[str, Tensor] | None = None
    if weights is not None:
        weights = module.played_weights(weights)
        values = {name: weights[name] for name in values}
        model_weights = language_model_weights(weights)
    note_weights(module, weights)
    guided = any(name.startswith("q_heads.") for name in values)
    ratios = any(name.startswith("q_model.") for name in values)
    base = None if merge else _base_of(module)
    card = model_card(facts(module), scores, guided, ratios, None if base is None else base.whole)
    defaults = generation_defaults(module)
    # Names with an underscore are those that LightningCLI adds.
    arguments = {name: value for name, value in module.hparams.items() if not name.startswith("_")}
    steps = module.global_step or module.made_with.get("steps")  # a module that was loaded has no trainer
    noted = _arguments(module, arguments)
    if noted["tokenizer"] not in BUNDLED:
        noted["tokenizer"] = None  # the folder holds the tokenizer; its path says where a user keeps files
    about = {"hyper_parameters": noted, **_entry(module, steps), "prompt_line": module.prompt_line}
    if module.hparams["lora"] is None:  # adapters need the path of their model
        about["made_with"] = _published(about["made_with"])
    export(folder, module.model, module.tokenizer, values, card, defaults, settings, model_weights, base, about)


def saves_adapters(module: SavedModule) -> bool:
    """Whether the folders in a run hold adapters alone: they and the base make the model."""
    return module.base is not None and _needs_whole(module, module.base) is None


def _needs_whole(module: SavedModule, base: BaseModel) -> str | None:
    """Return why adapters on that model do not make the model of a run; None: they do."""
    if module.model.config.vocab_size > base.vocabulary:
        return f"the run has embeddings for tokens that {base.whole} does not know: merge its adapters"
    if is_gguf(base.whole):
        return f"no other program finds {base.whole}, a GGUF file, under adapters: merge them"
    if not all(map(can_be_stacked, base.adapters)):
        return f"the run began with adapters of a kind that can only be merged, in {base.name}"
    return None


def _base_of(module: SavedModule) -> BaseModel:
    """The model that the adapters of a run belong to.

    Raises:
        UserError: there are no adapters, or they and such a model do not make the model of the run.
    """
    if module.hparams["lora"] is None:
        raise UserError("there are no adapters to write: the run trained none, or they were merged when it was read")
    base = module.base
    if base is None:  # a run of an earlier version, or from scratch
        starts_from = module.made_with.get("starts_from")
        if starts_from is None:
            raise UserError("adapters belong to a pretrained model, and this run began from scratch: merge them")
        base = replace(base_model(resolve_pretrained(starts_from)), sha256=None, whole_sha256=None)
    reason = _needs_whole(module, base)
    if reason is not None:
        raise UserError(reason)
    return base


def read_folder(folder: Path, kind: type[M], **settings: Any) -> M:
    """The module of an exported folder, as it plays: with its values and window, without optimizer and target networks.

    Args:
        folder: folder that `write_folder` wrote.
        kind: its class, as ``lmrl.json`` names it.
        **settings: arguments over those that it was made with.

    Raises:
        UserError: files do not belong together.
    """
    manifest = read_manifest(folder)
    values = exported_values(str(folder))
    noted = {**kind.earlier_defaults, **manifest["hyper_parameters"], "tokenizer": None}
    recorded = plain_arguments(noted, folder)
    arguments = {**recorded, "tokenizer": str(folder), **settings}
    if not any(is_adapter(name) for name in values):
        arguments["lora"] = None  # those of the language model are part of it, or are merged into it here
    if "play_target" in arguments:
        arguments["play_target"] = False  # the folder holds only the copy that plays
    base = adapter_base(str(folder))
    if base is not None:
        check_adapters(str(folder), base)
    held = held_with_base(folder)
    check_architecture(arguments["architecture"], held, folder / MANIFEST)
    with limited_weights(held, folder / MANIFEST):
        module = kind(**arguments)
    if fingerprint(module.tokenizer) != manifest["tokenizer"]:
        raise UserError(f"{folder / 'tokenizer.json'} and {folder / MANIFEST} do not belong together; export it again")
    read_entry(module, {"lmrl": manifest})
    unmatched = values.keys() ^ module.value_state_dict().keys()
    if unmatched:
        raise UserError(f"{folder}: weights and {MANIFEST} do not belong together ({min(unmatched)}); export it again")
    weights = dict(values)
    model = build_lm(str(folder), {}, len(module.tokenizer), dtype=torch.float32)
    for name, tensor in model.state_dict().items():
        weights[f"model.{name}"] = tensor
    module.load_state_dict(weights, strict=False)  # it lacks target networks
    expected = module.made_with.get("weights")
    # The hash of a model with adapters is of the unmerged weights, which the folder does not hold.
    if expected is not None and manifest["hyper_parameters"].get("lora") is None:
        note_weights(module)
        if module.made_with["weights"] != expected:
            files = ", ".join(str(path) for path in sorted(folder.glob("*.safetensors")))
            raise UserError(f"{files}: not the weights that {folder / MANIFEST} names; export the folder again")
    module.eval()
    return module


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration values that a checkpoint can hold."""
    plain = (int, float, str, bool, list, dict, type(None))
    return {name: value for name, value in values.items() if isinstance(value, plain)}
