"""A model folder in Hugging Face's layout, with value weights next to it."""

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import logging

from lmrl.errors import UserError, check_range
from lmrl.models.base_model import BaseModel
from lmrl.models.folders import (
    check_folder,
    damaged,
    limited_weights,
    model_config,
    read_tensors,
    tensor_metadata,
    weights_held,
)
from lmrl.models.heads import ValueHead
from lmrl.models.lm import build_lm, trunk_of
from lmrl.models.lora import adapters_of, add_lora, has_lora, merged, save_adapters, stacked, with_weights
from lmrl.tokens.encoding import Window
from lmrl.utils.files import check_may_replace, json_of_file, parse_json, replacing_folder

__all__ = [
    "MANIFEST", "VALUES_FILE", "Values", "check_replaceable", "export", "export_for_reload", "exported_values",
    "load_values", "prompt_line_of", "read_manifest", "window_of",
]  # fmt: skip

MANIFEST = "lmrl.json"
"""The file that describes an export and lists its files; only folders that an export made have it."""
VALUES_FILE = "value_heads.safetensors"
_SETTINGS = "lmrl"  # key of the settings in the file's metadata


def export(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    values: Mapping[str, Tensor],
    card: str,
    generation: GenerationConfig,
    settings: Mapping[str, Any],
    weights: Mapping[str, Tensor] | None = None,
    base: BaseModel | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write the folder again: ``AutoModelForCausalLM`` and ``AutoTokenizer`` load it without this package.

    Args:
        folder: replaced as a whole if it exists, in one step once the new one is complete.
        model: the language model. For value-guided policies it is pi_beta alone, which plays like its BC run.
        tokenizer: tokenizer of the model.
        values: weights of the value model; written to ``value_heads.safetensors`` if there are any.
        card: written to ``README.md``.
        generation: what ``model.generate`` does by default.
        settings: how the values are played (``beta``, ``rendering``) and what they hold (``lora``), kept with them.
        weights: weights of the language model, where `model` holds a share of them.
        base: write adapters alone, for `peft`; this is the model that they belong to. None: write a whole model.
        about: JSON-like, written to ``lmrl.json``: what makes the policy of it again.

    Raises:
        UserError: as `check_replaceable`.
    """
    check_replaceable(folder)
    # The progress bar of each save would tear that of the training.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if base is None and has_lora(model):
        model = merged(model if weights is None else with_weights(model, weights))
        weights = None
    with replacing_folder(folder) as new:
        if base is None:
            model.save_pretrained(new, state_dict=None if weights is None else dict(weights))
        else:
            own = [adapters_of(model, weights)] if has_lora(model) or not base.adapters else []
            save_adapters(stacked([*base.adapters, *own]), new, base.whole, base.whole_sha256)
        generation.save_pretrained(new)
        _save_tokenizer(tokenizer, new)
        (new / "README.md").write_text(card, encoding="utf-8")
        if values:
            _save_tensors(values, new / VALUES_FILE, {_SETTINGS: json.dumps(settings)})
        _write_manifest(new, about or {})


def export_for_reload(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the language model alone, with a vocabulary head of its own, for a server that reads it again and again.

    Embeddings and vocabulary head are written apart even where they are one: vLLM 0.32 reads the new embeddings of
    such a model into a running server, and leaves the old ones in the head.

    Args:
        folder: replaced as `export` does.
        model: adapters are merged into a copy.
        tokenizer: tokenizer of the model.
        weights: weights of the language model, where `model` holds a share of them.

    Raises:
        UserError: as `check_replaceable`.
    """
    check_replaceable(folder)
    if has_lora(model):
        model = merged(model if weights is None else with_weights(model, weights))
        weights = None
    tensors = dict(model.state_dict() if weights is None else weights)
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):  # type: ignore[no-untyped-call]
        # A state dict in shards may lack one of two names of a tied weight.
        names = [
            name for name, parameter in model.named_parameters(remove_duplicate=False) if parameter is layer.weight
        ]
        weight = next(tensors[name] for name in names if name in tensors)
        for name in names:
            tensors[name] = weight.clone()
    # As `save_pretrained` names them: transformers holds the experts of a layer in one tensor, files in many.
    tensors = revert_weight_conversion(model, tensors)
    config = deepcopy(model.config)
    config.tie_word_embeddings = False
    config.dtype = model.dtype
    config.architectures = [type(model).__name__.removeprefix("FSDP")]  # as classes of models in shards are called
    with replacing_folder(folder) as new:
        _save_tensors(tensors, new / "model.safetensors", {})
        config.save_pretrained(new)
        _save_tokenizer(tokenizer, new)
        _write_manifest(new, {})


def _save_tensors(tensors: Mapping[str, Tensor], file: Path, metadata: Mapping[str, str]) -> None:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(plain, file, metadata={"format": "pt", **metadata})


def _write_manifest(folder: Path, about: Mapping[str, Any]) -> None:
    files = sorted([MANIFEST, *(entry.name for entry in folder.iterdir())])
    (folder / MANIFEST).write_text(json.dumps({**about, "files": files}, indent=2) + "\n", encoding="utf-8")


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer so that `generate` can continue a padded batch: padding is on the left.

    A tokenizer without a padding token, as GPT-2's, pads with the token that ends a text.
    """
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = json_of_file(file)
    config["padding_side"] = "left"
    if tokenizer.pad_token is None:
        config["pad_token"] = tokenizer.eos_token
    file.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def check_replaceable(folder: Path, inputs: Iterable[Path] = ()) -> None:
    """Make sure that an export may take the place of what is there: nothing, or the files of another export.

    Args:
        folder: folder of the export.
        inputs: files and folders that the export is made from.

    Raises:
        UserError: as `lmrl.utils.files.check_may_replace`.
    """
    files = read_manifest(folder).get("files", ()) if folder.is_dir() else ()
    check_may_replace(folder, files, "export", inputs=inputs)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What `export` has noted about a folder in ``lmrl.json``; empty if it did not make it.

    Raises:
        UserError: naming the file, if it is damaged.
    """
    file = folder / MANIFEST
    if not file.is_file():
        return {}
    manifest = json_of_file(file)
    for key, kind in (("files", list), ("hyper_parameters", dict), ("made_with", dict), ("class", str)):
        if not isinstance(manifest.get(key, kind()), kind) or "files" not in manifest:
            raise UserError(f"{file}: not written by an export ({key}); export the folder again")
    return manifest


def window_of(entry: Mapping[str, Any], where: str) -> Window | None:
    """Return the window that a policy was trained with; None if it is not noted.

    Args:
        entry: of a checkpoint, or a manifest (see `read_manifest`).
        where: it is from, for the message.

    Raises:
        UserError: what is noted is no window.
    """
    noted = entry.get("window")
    if noted is None:
        return None
    error = UserError(f"{where}'s window is {noted!r:.100}")
    try:
        window = Window(**noted)
    except TypeError:  # no mapping, or with other keys
        raise error from None
    is_sound = isinstance(window.texts, int | None) and isinstance(window.tokens, int) and isinstance(window.bos, bool)
    if not (is_sound and isinstance(window.system, str) and isinstance(window.rendering, str)):
        raise error
    check_range("[1, inf)", **{"window.texts": window.texts, "window.tokens": window.tokens})
    return window


def prompt_line_of(manifest: Mapping[str, Any], folder: str) -> str:
    """Return the line that a policy reads before the observations; empty: none. See `lmrl.policies.ConditionedPolicy`.

    Args:
        manifest: see `read_manifest`.
        folder: that it describes, for the message.

    Raises:
        UserError: an earlier version has not noted it.
    """
    line = manifest.get("prompt_line")
    if line is None and str(manifest.get("class")).endswith(".ReturnConditionedBC"):
        raise UserError(f"{folder} does not say which return its policy asks for; export it again")
    return "" if line is None else str(line)


def exported_values(folder: str) -> dict[str, Tensor]:
    """The value weights next to an exported model; empty if it has none (or is no folder)."""
    file = Path(folder) / VALUES_FILE
    weights = read_tensors(file) if file.is_file() else {}
    for name, tensor in weights.items():
        if tensor.dtype is torch.float16:  # which saves room in a file; values are computed in float32
            weights[name] = tensor.float()
    return weights


class Values(NamedTuple):
    """The files next to the language model in an exported folder."""

    trunk: PreTrainedModel
    """Reads the same ids; in eval mode, without gradients."""
    q_heads: tuple[ValueHead, ...]
    settings: dict[str, Any]
    """``beta``, with which it was trained to play."""


def load_values(folder: str | Path) -> Values:
    """The value model of an exported folder.

    Raises:
        UserError: if the folder has none, or is damaged.
    """
    weights = exported_values(str(folder))
    if not any(name.startswith("q_heads.") for name in weights):
        raise UserError(f"{folder} must be an exported folder of MC or ILQL: there are no Q heads in its {VALUES_FILE}")
    check_folder(str(folder))
    file = Path(folder) / VALUES_FILE
    settings = parse_json(tensor_metadata(file).get(_SETTINGS, "{}"), f"{file}, metadata {_SETTINGS!r}")
    try:
        # Names are PART.REST, or q_heads.NUMBER.REST.
        parts: dict[str, dict[str, Tensor]] = {}
        for name, tensor in weights.items():
            part, _, rest = name.partition(".")
            if part == "q_heads":
                number, _, rest = rest.partition(".")
                part = f"{part}.{number}"
            parts.setdefault(part, {})[rest] = tensor
        trunk = _trunk(folder, parts["trunk"], settings.get("lora")).requires_grad_(False).train(False)
        heads = tuple(_head(parts[name]) for name in sorted(parts) if name.startswith("q_heads."))
        return Values(trunk, heads, settings)
    except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        if isinstance(error, UserError) or getattr(error, "errno", None) is not None:
            raise
        raise damaged(file, error) from error


def _trunk(folder: str | Path, weights: Mapping[str, Tensor], lora: Mapping[str, Any] | None) -> PreTrainedModel:
    if lora is not None:
        trunk = trunk_of(build_lm(str(folder), {}, 0))
        add_lora(trunk, lora)
        trunk.load_state_dict(weights, strict=False)
        return trunk
    config = model_config(str(folder))
    kind = next(iter(weights.values())).dtype
    # Built without memory first, so that a configuration far larger than the weights is refused.
    with limited_weights(weights_held(weights, Path(folder) / VALUES_FILE), folder), torch.device("meta"):
        AutoModelForCausalLM.from_config(config, dtype=kind)  # type: ignore[no-untyped-call]
    trunk = trunk_of(AutoModelForCausalLM.from_config(config, dtype=kind))  # type: ignore[no-untyped-call]
    trunk.load_state_dict(weights)
    return trunk


def _head(weights: Mapping[str, Tensor]) -> ValueHead:
    inner, width = weights["inner.weight"].shape
    with torch.device("meta"):
        head = ValueHead(width, weights["outer.weight"].shape[0], inner=inner)
    head.load_state_dict(weights, assign=True)
    return head.requires_grad_(False).eval()
