"""Model folders as they come from anywhere: checked before a library reads them."""

import json
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig

from lmrl.errors import UserError, in_one_line
from lmrl.files import json_of_file

__all__ = ["check_folder", "damaged", "read_tensors", "tensor_metadata"]

_PLAIN = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "adapter_config.json")
_TEXTS = ("special_tokens_map.json", "model.safetensors.index.json")


def check_folder(folder: str) -> None:
    """Make sure that the JSON files of a model folder hold objects and its safetensors files are whole.

    What is a hub id, and no folder, is left to the library.

    Raises:
        UserError: naming the file, and the line and column where it is no JSON.
    """
    if not Path(folder).is_dir():
        return
    for name in (*_PLAIN, *_TEXTS):
        if (path := Path(folder) / name).is_file():
            json_of_file(path)
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensor_metadata(path)
    try:
        AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError):  # there is none, or it is one of those that only the loader can judge
        return
    except Exception as error:  # a value of another kind
        raise damaged(Path(folder) / "config.json", error) from error


def tensor_metadata(path: Path) -> dict[str, str]:
    """The texts beside the tensors of a file, whose header agrees with its size.

    Raises:
        UserError: naming the file, if it is damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, ValueError, struct.error, json.JSONDecodeError, RuntimeError) as error:
        raise damaged(path, error) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name.

    Raises:
        UserError: naming the file, if it is damaged.
    """
    tensor_metadata(path)
    try:
        return load_file(path)
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise damaged(path, error) from error


def damaged(path: Any, error: Exception) -> UserError:
    """What to say about a file or folder in which a library stumbled."""
    return UserError(f"{path} is damaged or of another kind: {type(error).__name__}: {in_one_line(error)}")
