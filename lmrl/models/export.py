"""A model folder in Hugging Face's layout, with value weights beside it."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from lmrl.errors import UserError
from lmrl.models.heads import ValueHead
from lmrl.models.lm import trunk_of
from lmrl.models.lora import add_lora, has_lora, merged, save_adapter, with_weights

__all__ = ["VALUES_FILE", "Values", "export", "exported_values", "load_values"]

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
    base: str | None = None,
) -> None:
    """Write the folder anew: ``AutoModelForCausalLM`` and ``AutoTokenizer`` load it without this package.

    Args:
        folder: replaced as a whole if it exists, once the new one is complete.
        model: the language model. For value-guided policies it is pi_beta alone, which plays like its BC run.
        tokenizer: of the model.
        values: weights of the value model; written to ``value_heads.safetensors`` if there are any.
        card: written to ``README.md``.
        generation: what ``model.generate`` does by default.
        settings: how the values are played (``beta``, ``rendering``) and what they hold (``lora``), kept with them.
        weights: of the language model, where `model` holds a share of them.
        base: write the model's adapters alone, for `peft`; this is the model that they belong to. None: a whole model.
    """
    new, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    for left_over in (new, old):
        shutil.rmtree(left_over, ignore_errors=True)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it saves often, and the bar would tear that of the training
    if weights is not None and has_lora(model):
        model, weights = with_weights(model, weights), None
    if base is None:
        whole = merged(model) if has_lora(model) else model
        whole.save_pretrained(new, state_dict=None if weights is None else dict(weights))
    else:
        save_adapter(model, new, base)
    generation.save_pretrained(new)
    tokenizer.save_pretrained(new)
    (new / "README.md").write_text(card, encoding="utf-8")
    if values:
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in values.items()}
        save_file(weights, new / VALUES_FILE, metadata={"format": "pt", _SETTINGS: json.dumps(settings)})
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def exported_values(folder: str) -> dict[str, Tensor]:
    """The value weights beside an exported model; empty if it has none (or is no folder)."""
    file = Path(folder) / VALUES_FILE
    return load_file(file) if file.is_file() else {}


class Values(NamedTuple):
    """What lies beside the language model in an exported folder."""

    trunk: PreTrainedModel
    """Reads the same ids; in eval mode, without gradients."""
    q_heads: tuple[ValueHead, ...]
    settings: dict[str, Any]
    """``beta``, with which it was trained to play."""


def load_values(folder: str | Path) -> Values:
    """The value model of an exported folder.

    Raises:
        UserError: if the folder has none.
    """
    weights = exported_values(str(folder))
    if not any(name.startswith("q_heads.") for name in weights):
        raise UserError(f"{folder} must be an exported folder of MC or ILQL: there are no Q heads in its {VALUES_FILE}")
    with safe_open(Path(folder) / VALUES_FILE, framework="pt") as opened:
        settings = json.loads((opened.metadata() or {}).get(_SETTINGS, "{}"))
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in weights.items():
        part, _, rest = name.partition(".")
        if part == "q_heads":
            number, _, rest = rest.partition(".")
            part = f"{part}.{number}"
        parts.setdefault(part, {})[rest] = tensor
    trunk = _trunk(folder, parts["trunk"], settings.get("lora"))
    heads = tuple(_head(parts[name]) for name in sorted(parts) if name.startswith("q_heads."))
    return Values(trunk.requires_grad_(False).train(False), heads, settings)


def _trunk(folder: str | Path, weights: Mapping[str, Tensor], lora: Mapping[str, Any] | None) -> PreTrainedModel:
    if lora is not None:
        trunk = trunk_of(AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False))
        add_lora(trunk, lora)
        trunk.load_state_dict(weights, strict=False)
        return trunk
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    kind = next(iter(weights.values())).dtype
    trunk = trunk_of(AutoModelForCausalLM.from_config(config, dtype=kind))  # type: ignore[no-untyped-call]
    trunk.load_state_dict(weights)
    return trunk


def _head(weights: Mapping[str, Tensor]) -> ValueHead:
    inner, width = weights["inner.weight"].shape
    with torch.device("meta"):
        head = ValueHead(width, weights["outer.weight"].shape[0], inner=inner)
    head.load_state_dict(weights, assign=True)
    return head.requires_grad_(False).eval()
