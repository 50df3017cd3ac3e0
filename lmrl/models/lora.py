"""Low-rank adapters on a language model that itself stays as it is (LoRA, Hu et al. 2022), by `peft`."""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from lmrl.errors import UserError, check_range, in_one_line
from lmrl.models.folders import held_by_folder, limited_weights, read_tensors
from lmrl.utils.files import json_of_file

__all__ = [
    "ADAPTER_CONFIG", "BASE_SHA256", "Adapters", "adapter_base", "adapter_chain", "adapter_file", "adapter_settings",
    "adapter_weights", "adapters_of", "add_lora", "can_be_stacked", "changes_nothing", "has_lora", "is_adapter",
    "merge_adapter", "merged", "read_adapters", "save_adapters", "stacked", "with_weights",
]  # fmt: skip

ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
BASE_SHA256 = "base_sha256"
"""The key, in the metadata of a file of adapters, of the hash of the model under them (`lmrl.models.base_model`)."""
_SETTINGS = ("r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora")
_ADAPTER_NAME = "default"  # peft's own name of the only adapter
_ADAPTER_MARK = "lora_"  # in the names of all weights of adapters, and of no others
_FILE_PREFIX = "base_model.model."  # prefix of names in files of adapters: their names in a PeftModel


def add_lora(model: PreTrainedModel, settings: Mapping[str, Any]) -> None:
    """Freeze a model and put adapters on its linear layers; they are what learns, and begin as no change at all.

    Parameters of the model may be shared with others: none of them is ever written to.

    Args:
        model: changed in place. Its adapters are float32, whatever it runs in itself.
        settings: arguments of ``peft.LoraConfig``: ``r``, ``lora_alpha``, ``lora_dropout``, ``target_modules`` (all
            linear layers but the vocabulary head if left out) and ``use_rslora``.

    Raises:
        UserError: `peft` is missing, it does not take a setting, or a layer that would get adapters shares its weight
            with another (a vocabulary head that is tied to the embeddings).
    """
    peft = _peft()
    unknown = sorted(set(settings) - set(_SETTINGS))
    if unknown:
        raise UserError(f"lora has the settings {', '.join(_SETTINGS)}, got {', '.join(unknown)}")
    check_range("[1, inf)", **{"lora.r": settings.get("r")})
    check_range("(0, inf)", **{"lora.lora_alpha": settings.get("lora_alpha")})
    check_range("[0, 1)", **{"lora.lora_dropout": settings.get("lora_dropout")})
    for name, value in settings.items():
        # peft reads a text as a regular expression, for which a file could choose one that never ends.
        if value is not None and not _SETTING_CHECKS[name](value):
            hint = "; name the layers, without a regular expression" if name == "target_modules" else ""
            raise UserError(f"lora.{name} cannot be {value!r:.80}{hint}")
    # GPT-2 keeps its weights the other way round.
    transposed = any(isinstance(module, Conv1D) for module in model.modules())
    chosen = {"target_modules": "all-linear", **settings, "task_type": "CAUSAL_LM", "fan_in_fan_out": transposed}
    model.requires_grad_(False)
    try:
        with warnings.catch_warnings():
            # GPT-2 has linear layers of both orientations where its head gets adapters; peft corrects the setting.
            warnings.filterwarnings("ignore", "fan_in_fan_out is set to")
            warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")  # see `_check_tied`
            peft.inject_adapter_in_model(peft.LoraConfig(**chosen), model)
    except (TypeError, ValueError) as error:
        raise UserError(f"lora: peft does not take {dict(settings)}: {error}") from error
    _check_tied(model)
    for name, parameter in model.named_parameters():
        if is_adapter(name):
            parameter.data = parameter.data.float()


def _check_tied(model: PreTrainedModel) -> None:
    """Make sure that no layer with adapters shares its weight with another layer.

    Raises:
        UserError: naming the layers that share a weight.
    """
    # The adapters would change one layer only, but merging them would change both.
    for name, _, sharing in _tied_layers(model):
        others = [user.replace(".base_layer", "").removesuffix(".weight") for user in sharing]
        raise UserError(
            f"lora.target_modules must leave out {name.rpartition('.')[2]}: the layers {' and '.join(others)} "
            "share one weight, so adapters on one of them cannot be exported"
        )


def _tied_layers(model: nn.Module) -> Iterator[tuple[str, Any, list[str]]]:
    """Yield each layer with adapters that shares its weight: its name, the layer, and the names of the weight."""
    users: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        users.setdefault(id(parameter), []).append(name)
    for name, layer in model.named_modules():
        if hasattr(layer, "get_delta_weight"):
            sharing = users[id(layer.get_base_layer().weight)]
            if len(sharing) > 1:
                yield name, layer, sharing


def is_adapter(name: str) -> bool:
    """Whether a weight of that name belongs to an adapter."""
    return _ADAPTER_MARK in name


def has_lora(model: nn.Module) -> bool:
    """Whether a model has adapters."""
    return any(is_adapter(name) for name, _ in model.named_parameters())


def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of the adapters alone, under their names in the model."""
    return {name: tensor for name, tensor in model.state_dict().items() if is_adapter(name)}


def changes_nothing(model: nn.Module) -> bool:
    """Whether a model plays as it would without its adapters: one of the two matrices of each is zero."""
    nonzero = Counter[str]()
    for name, tensor in adapter_weights(model).items():
        layer, _, _ = name.partition(_ADAPTER_MARK)
        nonzero[layer] += bool(tensor.any())
    return max(nonzero.values(), default=0) < 2


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A copy on the CPU, without adapters, with their share in its weights: a plain model with the same logits."""
    # Parameters are copied to the CPU one by one, and deepcopy takes these copies: a GPU need not hold the model twice.
    on_cpu: dict[int, Any] = {}
    for parameter in model.parameters():
        on_cpu[id(parameter)] = nn.Parameter(parameter.detach().to("cpu", copy=True), requires_grad=False)
    copy: PreTrainedModel = deepcopy(model, on_cpu).to("cpu")  # type: ignore[arg-type]
    for name, layer in list(copy.named_modules()):
        if hasattr(layer, "get_delta_weight"):
            layer.merge()
            copy.set_submodule(name, layer.get_base_layer())
    vars(copy).pop("peft_config", None)  # else it is saved as a model with adapters
    return copy


def with_weights(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> PreTrainedModel:
    """A model of the same kind with adapters of the same kind, which holds the weights; `model` may be in shards."""
    made: PreTrainedModel = type(model)(model.config)
    _peft().inject_adapter_in_model(deepcopy(model.peft_config[_ADAPTER_NAME]), made)
    made.load_state_dict(weights, assign=True)
    made.tie_weights()
    return made


class Adapters(NamedTuple):
    """The adapters of a model, as `peft` keeps them in a file."""

    settings: Mapping[str, Any]
    """Settings of ``peft.LoraConfig``."""
    weights: Mapping[str, Tensor]
    """By their names in the model."""


def adapters_of(model: PreTrainedModel, weights: Mapping[str, Tensor] | None = None) -> Adapters:
    """Return the adapters of a model. One that has none gets some that change nothing.

    Args:
        model: a causal language model.
        weights: its full state dict, where it holds a share of it.
    """
    if not has_lora(model):
        with torch.device("meta"):
            model = type(model)(model.config)
        add_lora(model, {"r": 1})
        weights = {name: torch.zeros(tensor.shape) for name, tensor in adapter_weights(model).items()}
    config: Any = model.peft_config[_ADAPTER_NAME]
    settings = {name: getattr(config, name) for name in (*_SETTINGS, "fan_in_fan_out")}
    if isinstance(config.target_modules, set):
        settings["target_modules"] = sorted(config.target_modules)
    return Adapters(settings, _peft().get_peft_model_state_dict(model, weights, save_embedding_layers=False))


def adapter_file(folder: str) -> Path:
    """Return the file of weights in a folder of adapters; older programs wrote it with torch."""
    file = Path(folder) / _ADAPTER_WEIGHTS
    old = file.with_suffix(".bin")
    return old if old.is_file() and not file.is_file() else file


def read_adapters(folder: str) -> Adapters:
    """Return the adapters of a folder.

    Raises:
        UserError: a file is damaged.
    """
    file = adapter_file(folder)
    held = torch.load(file, map_location="cpu", weights_only=True) if file.suffix == ".bin" else read_tensors(file)
    weights = {name.removeprefix(_FILE_PREFIX): tensor for name, tensor in held.items()}
    return Adapters(adapter_settings(Path(folder) / ADAPTER_CONFIG), weights)


def can_be_stacked(adapters: Adapters) -> bool:
    """Whether adapters are of the plain kind that `stacked` knows."""
    known = {*_SETTINGS, "fan_in_fan_out", "bias", "exclude_modules", "layers_to_transform", "layers_pattern"}
    return adapters.settings.keys() <= known and adapters.settings.get("bias", "none") == "none"


def stacked(parts: Sequence[Adapters]) -> Adapters:
    """Return the adapters that change a model as several do together; their rank is the sum of all ranks.

    Args:
        parts: one or more adapters, for each of which `can_be_stacked` holds.
    """
    if len(parts) == 1:
        return parts[0]
    rank = sum(part.settings["r"] for part in parts)
    layers = set[str]()
    weights = {}
    for name in sorted({name for part in parts for name in part.weights}):
        layers.add(name.partition(f".{_ADAPTER_MARK}")[0])
        is_outer = "lora_B" in name or "lora_embedding_B" in name  # (outputs, rank); the inner one is (rank, inputs)
        pieces = []
        for part in parts:
            piece = part.weights.get(name)
            if piece is None:  # this part leaves the layer as it is
                shape = list(next(other.weights[name] for other in parts if name in other.weights).shape)
                shape[1 if is_outer else 0] = part.settings["r"]
                piece = torch.zeros(shape)
            pieces.append(piece.cpu() * _scale(part.settings) if is_outer else piece.cpu())
        weights[name] = torch.cat(pieces, dim=1 if is_outer else 0)
    transposed = parts[0].settings.get("fan_in_fan_out", False)
    settings = {"r": rank, "lora_alpha": rank, "target_modules": sorted(layers), "fan_in_fan_out": transposed}
    return Adapters(settings, weights)


def _scale(settings: Mapping[str, Any]) -> float:
    """Return the factor by which `peft` multiplies the product of an adapter's two matrices."""
    rank: int = settings["r"]
    return float(settings.get("lora_alpha", 8) / (rank**0.5 if settings.get("use_rslora") else rank))


def save_adapters(adapters: Adapters, folder: Path, base: str, sha256: str | None) -> None:
    """Write adapters as `transformers` and ``peft.PeftModel.from_pretrained`` read them.

    Args:
        adapters: the adapters.
        folder: folder to write to.
        base: folder or hub id of the model under them; a folder is noted by its full path.
        sha256: its `lmrl.models.base_model.base_sha256`; None: not known.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = {}
    for name, tensor in adapters.weights.items():
        named[f"{_FILE_PREFIX}{name}"] = tensor.detach().cpu().contiguous()
    metadata = {"format": "pt"}
    if sha256 is not None:
        metadata[BASE_SHA256] = sha256
    save_file(named, folder / _ADAPTER_WEIGHTS, metadata=metadata)
    where = str(Path(base).absolute()) if Path(base).exists() else base
    settings = {**adapters.settings, "task_type": "CAUSAL_LM", "inference_mode": True}
    _peft().LoraConfig(**settings, base_model_name_or_path=where).save_pretrained(folder)


def adapter_base(folder: str) -> str | None:
    """The model that a folder's adapters belong to; None if it holds a whole model, or is no folder.

    Raises:
        UserError: as `adapter_chain`.
    """
    chain = adapter_chain(folder)
    return chain[1] if len(chain) > 1 else None


def adapter_chain(folder: str) -> list[str]:
    """The folder, the model that its adapters belong to, and so on, down to a whole model or a hub id.

    Raises:
        UserError: it names no model, or, perhaps by way of other adapters, itself; or it holds adapters of a kind that
            is not read here.
    """
    bases = [folder]
    seen = set[Path]()
    while True:
        file = Path(bases[-1]) / ADAPTER_CONFIG
        is_whole_model = (Path(bases[-1]) / "config.json").is_file()
        if is_whole_model or not file.is_file():
            break
        base = json_of_file(file).get("base_model_name_or_path")
        if not isinstance(base, str) or not base or file.resolve() in seen:
            raise UserError(f"{file}: base_model_name_or_path must name a model, got {base!r:.80}")
        seen.add(file.resolve())
        bases.append(base)
    for part in bases[:-1]:
        adapter_settings(Path(part) / ADAPTER_CONFIG)
    return bases


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w.-]+", value) is not None  # no regular expression


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 10**6


def _is_names(value: Any) -> bool:
    return _is_name(value) or (isinstance(value, list | tuple | set) and all(_is_name(name) for name in value))


def _is_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_name(name) and _is_number(value[name]) for name in value)


def _is_switch(value: Any) -> bool:
    return isinstance(value, bool)


#: The settings of adapters that are read, each with a check of its value. A file may come from anyone.
_SETTING_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "r": lambda value: _is_number(value) and isinstance(value, int) and value > 0,
    "lora_alpha": _is_number,
    "lora_dropout": _is_number,
    "target_modules": _is_names,
    "exclude_modules": _is_names,
    "modules_to_save": _is_names,
    "layers_to_transform": lambda value: isinstance(value, list) and all(isinstance(layer, int) for layer in value),
    "layers_pattern": _is_names,
    "rank_pattern": _is_numbers,
    "alpha_pattern": _is_numbers,
    "bias": lambda value: value in ("none", "all", "lora_only"),
    "fan_in_fan_out": _is_switch,
    "use_rslora": _is_switch,
    "use_dora": _is_switch,
    "lora_bias": _is_switch,
}
#: Settings that are ignored: where adapters come from, how they were initialised, and parts of other settings.
_IGNORED_SETTINGS = (
    "auto_mapping", "base_model_name_or_path", "inference_mode", "init_lora_weights", "megatron_core", "peft_type",
    "peft_version", "qalora_group_size", "revision", "task_type",
)  # fmt: skip


#: Beginnings of initialisations that also change the weights below the adapters (``pissa_niter_4``).
_BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


def adapter_settings(file: Path) -> dict[str, Any]:
    """Return the settings of `peft.LoraConfig` in the configuration of a folder's adapters.

    `peft` never reads the file itself: some of its settings name modules to import.

    Raises:
        UserError: it is of adapters of another kind, or has a setting that is not read here.
    """
    config = json_of_file(file)
    if config.get("peft_type") != "LORA" or config.get("task_type") not in (None, "CAUSAL_LM"):
        kind = f"{config.get('peft_type')!r:.40} for {config.get('task_type')!r:.40}"
        raise UserError(f"{file} must be of adapters of the type LORA for CAUSAL_LM, got {kind}")
    started = config.get("init_lora_weights")
    if isinstance(started, str) and started.lower().startswith(_BASE_CHANGING_INITS):
        raise UserError(
            f"{file}: these adapters belong to weights that init_lora_weights={started!r:.40} has changed: merge them "
            "with peft first"
        )
    settings = {}
    for name, value in config.items():
        if name in _IGNORED_SETTINGS or value is None or value in ({}, [], False):
            continue
        if name not in _SETTING_CHECKS:
            raise UserError(f"{file} sets {name!r:.60}, which is not read here: merge these adapters with peft first")
        if not _SETTING_CHECKS[name](value):
            raise UserError(f"{file}: {name} cannot be {value!r:.80}")
        settings[name] = value
    return settings


def merge_adapter(model: PreTrainedModel, folder: str) -> PreTrainedModel:
    """The model with the share of a folder's adapters in its weights.

    Raises:
        UserError: they do not belong to the model, or a file is damaged.
    """
    peft = _peft()
    file = Path(folder) / ADAPTER_CONFIG
    settings = adapter_settings(file)
    try:
        config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings)
        with limited_weights(held_by_folder(folder), folder), warnings.catch_warnings():
            # peft only warns, and begins from random numbers.
            warnings.filterwarnings("error", "Found missing adapter keys")
            warnings.filterwarnings("ignore", "fan_in_fan_out is set to")
            warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`")  # they are untied below
            with_adapters = peft.PeftModel.from_pretrained(model, folder, config=config)
        # The adapters of one layer would be merged into all that share its weight.
        for _, layer, _ in list(_tied_layers(with_adapters)):
            base = layer.get_base_layer()
            base.weight = nn.Parameter(base.weight.detach().clone())
            model.config.tie_word_embeddings = False
        plain: PreTrainedModel = with_adapters.merge_and_unload()
    except Exception as error:  # what does not fit together can end in any exception of the libraries
        if isinstance(error, (UserError, MemoryError)) or getattr(error, "errno", None) is not None:
            raise
        raise UserError(f"{folder} holds no adapters of the model that it names: {in_one_line(error)}") from error
    return plain.requires_grad_(True)


def _peft() -> ModuleType:
    try:
        return import_module("peft")
    except ImportError as error:
        raise UserError(f"lora needs the package peft ({error}): pip install 'lmrl[lora]'") from error
