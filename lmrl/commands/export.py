"""``lmrl export``: the model of a run as a folder for `transformers`."""

import json
from pathlib import Path

from lmrl.errors import UserError
from lmrl.models.lora import ADAPTER_CONFIG
from lmrl.modules import load_module

__all__ = ["export_command"]


def export_command(run: Path, *, to: Path, merge_lora: bool = False, allow_pickle: bool = False) -> None:
    """Write a folder that AutoModelForCausalLM loads, with tokenizer, learned values and a model card.

    Args:
        run: a run folder (its best checkpoint, else its last) or a checkpoint.
        to: the folder to write; one that was exported before is replaced.
        merge_lora: of a run that trained adapters (lora), write a whole model instead of an adapter folder for peft.
        allow_pickle: read a checkpoint with pickled objects; that can run any code in it.
    """
    exported = any((to / name).is_file() for name in ("config.json", ADAPTER_CONFIG))
    if to.exists() and not exported and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"to must be a new folder or one that was exported before; {to} is something else")
    scores = (run if run.is_dir() else run.parent) / "evaluation" / "scores.json"
    found = json.loads(scores.read_text(encoding="utf-8")) if scores.is_file() else None
    to.parent.mkdir(parents=True, exist_ok=True)
    load_module(run, allow_pickle=allow_pickle).export(to, found, merge=merge_lora)
    evaluated = f"with the scores of {scores}" if found else f"without scores: there is no {scores}"
    print(f"written to {to}, {evaluated}")
