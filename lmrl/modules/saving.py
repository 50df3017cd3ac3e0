"""What checkpoints and model folders hold of a module, so that neither needs another file."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lmrl.errors import UserError
from lmrl.models.card import model_card
from lmrl.models.export import export
from lmrl.models.lora import has_lora
from lmrl.models.runs import resolve_pretrained
from lmrl.models.tokenizer import bundled_name, fingerprint
from lmrl.modules.provenance import facts, generation_defaults
from lmrl.tokens import Window

if TYPE_CHECKING:
    from lmrl.modules.base import LanguageModule

__all__ = ["read_entry", "stand_alone", "write_folder"]


def stand_alone(module: "LanguageModule", kind: type, checkpoint: dict[str, Any]) -> None:
    """Take every path of the run that a module started from out of its checkpoint, and put in what loading needs.

    Args:
        module: whose checkpoint it is.
        kind: its class, before anything was sharded.
        checkpoint: changed in place; gets an entry ``lmrl``.
    """
    arguments = dict(checkpoint.get("hyper_parameters", module.hparams))
    arguments.update(pretrained=None, architecture=_plain(module.model.config.to_diff_dict()))
    named = arguments["tokenizer"] or module.tokenizer.name_or_path
    arguments["tokenizer"] = bundled_name(module.tokenizer) or named
    checkpoint["hyper_parameters"] = arguments
    checkpoint["lmrl"] = {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "tokenizer": fingerprint(module.tokenizer),
        "window": None if module.window is None else asdict(module.window),
        "made_with": {**module.made_with, "steps": checkpoint.get("global_step")},
        "action_tokens": module.action_tokens,
    }


def read_entry(module: "LanguageModule", checkpoint: Mapping[str, Any]) -> None:
    """Take over what `stand_alone` put in.

    Raises:
        UserError: the weights belong to another vocabulary.
    """
    entry = checkpoint["lmrl"]
    ours, theirs = fingerprint(module.tokenizer), entry["tokenizer"]
    if ours != theirs:
        raise UserError(f"the checkpoint was trained with another tokenizer ({theirs}) than this one ({ours})")
    if entry["window"] is not None:
        module.window = Window(**entry["window"])
    module.made_with = dict(entry.get("made_with", {}))
    module.action_tokens = int(entry.get("action_tokens", 0))


def write_folder(
    module: "LanguageModule",
    folder: Path,
    scores: Mapping[str, Any] | None,
    weights: Mapping[str, Tensor] | None,
    merge: bool,
) -> None:
    """See `LanguageModule.export`."""
    values, settings = module.values(), {"beta": getattr(module, "beta", None), "lora": module.hparams["lora"]}
    settings["rendering"] = "text" if module.window is None else module.window.rendering
    spoken: dict[str, Tensor] | None = None
    if weights is not None:
        values = {name: weights[name] for name in values}
        spoken = {key.removeprefix("model."): t for key, t in weights.items() if key.startswith("model.")}
    card = model_card(facts(module), scores, guided=any(name.startswith("q_heads.") for name in values))
    base = _base(module) if has_lora(module.model) and not merge else None
    defaults = generation_defaults(module)
    export(folder, module.model, module.tokenizer, values, card, defaults, settings, spoken, base)


def _base(module: "LanguageModule") -> str:
    name = module.made_with.get("starts_from")
    if name is None:
        raise UserError("adapters belong to a pretrained model, and this run began from scratch: merge them")
    return resolve_pretrained(name)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Configuration values that a checkpoint can hold."""
    return {k: v for k, v in values.items() if isinstance(v, (int, float, str, bool, list, dict, type(None)))}
