"""A model folder in Hugging Face's layout, with value weights beside it."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

__all__ = ["VALUES_FILE", "export", "exported_values"]

VALUES_FILE = "value_heads.safetensors"


def export(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, values: Mapping[str, Tensor]
) -> None:
    """Write the folder anew: ``AutoModelForCausalLM`` and ``AutoTokenizer`` load it without this package.

    Args:
        folder: replaced as a whole if it exists, once the new one is complete.
        model: the language model. For value-guided policies it is pi_beta alone, which plays like its BC run.
        tokenizer: of the model.
        values: weights of the value model; written to ``value_heads.safetensors`` if there are any.
    """
    new, old = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    for left_over in (new, old):
        shutil.rmtree(left_over, ignore_errors=True)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # it saves often, and the bar would tear that of the training
    model.save_pretrained(new)
    tokenizer.save_pretrained(new)
    if values:
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in values.items()}
        save_file(weights, new / VALUES_FILE, metadata={"format": "pt"})
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def exported_values(folder: str) -> dict[str, Tensor]:
    """The value weights beside an exported model; empty if it has none (or is no folder)."""
    file = Path(folder) / VALUES_FILE
    return load_file(file) if file.is_file() else {}
