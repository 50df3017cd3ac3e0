"""``lmrl export``: the model of a run as a folder for `transformers`."""

from pathlib import Path
from typing import Any

from lmrl.evaluation.results import read_json
from lmrl.files import locked
from lmrl.models.export import check_replaceable
from lmrl.modules import load_module

__all__ = ["export_command"]


def export_command(run: Path, *, to: Path, merge_lora: bool = False, allow_pickle: bool = False) -> None:
    """Write a folder that AutoModelForCausalLM loads, with tokenizer, learned values and a model card.

    Args:
        run: a run folder (its best checkpoint, else its last) or a checkpoint.
        to: the folder to write: a new one, or that of an earlier export, which is replaced.
        merge_lora: of a run that trained adapters (lora), write a whole model instead of an adapter folder for peft.
        allow_pickle: read a checkpoint with pickled objects; that can run any code in it.
    """
    check_replaceable(to)
    with locked(to, "target"):
        module = load_module(run, allow_pickle=allow_pickle)
        scores, note = _scores(run, module.made_with.get("weights"))
        module.export(to, scores, merge=merge_lora)
    print(f"written to {to}, {note}")


def _scores(run: Path, weights: str | None) -> tuple[dict[str, Any] | None, str]:
    """The scores of these weights, if the run was evaluated with them, and what to say about them."""
    file = (run if run.is_dir() else run.parent) / "evaluation" / "scores.json"
    scores = read_json(file)
    if not scores:
        return None, f"without scores: there is no {file}"
    if weights is None or scores.get("provenance", {}).get("weights") != weights:
        return None, f"without scores: those in {file} are not of these weights; evaluate {run} again"
    return scores, f"with the scores of {file}"
