"""The model under adapters: where it is, and a hash that tells whether it is the one that they were trained on."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError

from lmrl.errors import UserError, in_one_line
from lmrl.models.folders import Held, held_by_folder, model_config, tensor_metadata
from lmrl.models.gguf import gguf_config, gguf_held, is_gguf
from lmrl.models.lora import (
    ADAPTER_CONFIG,
    BASE_SHA256,
    Adapters,
    adapter_chain,
    adapter_file,
    adapter_settings,
    read_adapters,
)
from lmrl.utils.files import json_of_file

__all__ = ["BaseModel", "base_model", "base_sha256", "check_adapters", "check_base", "held_with_base"]


@dataclass(frozen=True)
class BaseModel:
    """The model that adapters are trained on: a whole one, perhaps with other adapters on it."""

    name: str
    """A folder by its full path, or a hub id."""
    sha256: str | None
    """See `base_sha256`; None: not known, of a run of an earlier version."""
    vocabulary: int
    """The number of ids that it has embeddings for."""
    adapters: tuple[Adapters, ...]
    """Those that are merged into the whole model. They are kept, since the run that they are of may be trained on."""
    whole: str
    """The whole model, as `name`."""
    whole_sha256: str | None


def base_model(pretrained: str, trust_remote_code: bool = False) -> BaseModel:
    """Describe the model of a folder or hub id.

    Raises:
        UserError: it lacks files.
    """
    chain = [str(Path(part).absolute()) if Path(part).exists() else part for part in adapter_chain(pretrained)]
    *folders, whole = chain
    config = gguf_config(whole) if is_gguf(whole) else model_config(whole, trust_remote_code)
    vocabulary = int(config.vocab_size)
    adapters = tuple(read_adapters(folder) for folder in folders)
    return BaseModel(chain[0], base_sha256(pretrained), vocabulary, adapters, whole, base_sha256(whole))


def base_sha256(pretrained: str) -> str:
    """Hash the configuration and the weights of a model; of a folder of adapters, also those of the model under them.

    Files are hashed and not tensors, since merging adapters rounds differently on another machine.

    Args:
        pretrained: folder or hub id.

    Raises:
        UserError: the model lacks files.
    """
    *adapters, model = adapter_chain(pretrained)
    digest = hashlib.sha256()
    for folder in adapters:
        settings = adapter_settings(Path(folder) / ADAPTER_CONFIG)
        digest.update(json.dumps(settings, sort_keys=True).encode())
        digest.update(_hash_of(adapter_file(folder)))
    for file in _model_files(model):
        digest.update(_hash_of(file))
    return digest.hexdigest()


def check_adapters(folder: str, base: str) -> None:
    """Make sure that a folder's adapters find the model that they were trained on.

    Adapters of other programs do not say what its files were, and take any.

    Args:
        folder: folder of adapters.
        base: the model that it names.

    Raises:
        UserError: the model is not there, or its files have changed.
    """
    file = adapter_file(folder)
    metadata = tensor_metadata(file) if file.suffix == ".safetensors" and file.is_file() else {}
    check_base(folder, base, metadata.get(BASE_SHA256))


def check_base(holder: object, base: str, expected: str | None) -> None:
    """Make sure that the model under adapters is the one that they were trained on.

    Args:
        holder: the file or folder of the adapters, for the message.
        base: folder or hub id of the model.
        expected: its `base_sha256`; None: not known.

    Raises:
        UserError: the model is not there, or its files have changed.
    """
    adapters = f"{holder} holds adapters of the model {base!r:.300}"
    if Path(base).is_absolute() and not Path(base).exists():
        raise UserError(f"{adapters}, which is gone: put it, or a link to it, there")
    if expected is not None and base_sha256(base) != expected:
        raise UserError(f"{adapters}, whose files have changed: put those there that the adapters were trained on")


def held_with_base(folder: str | Path) -> Held:
    """Return what a model folder holds, as `held_by_folder`; with adapters, also what the model under them holds.

    Raises:
        UserError: a file is damaged or not there.
    """
    *adapters, model = adapter_chain(str(folder))
    tensors = 0
    numbers = 0
    parts = [held_by_folder(part) for part in adapters]
    if is_gguf(model):
        parts.append(gguf_held(model))
    else:
        parts.append(held_by_folder(model if Path(model).is_dir() else _model_files(model)[0].parent))
    for held in parts:
        tensors += held.tensors
        numbers += held.numbers
    return Held(tensors, numbers)


def _model_files(model: str) -> list[Path]:
    """Return the configuration and the weight files of a whole model, as `transformers` chooses them.

    Raises:
        UserError: it has none.
    """
    if is_gguf(model):
        return [Path(model)]
    for weights in ("model.safetensors", "pytorch_model.bin"):
        names = [weights]
        if _file(model, weights) is None:
            index = _file(model, f"{weights}.index.json")
            if index is None:
                continue
            names = sorted(set(json_of_file(index)["weight_map"].values()))
        files = [_file(model, name) for name in ("config.json", *names)]
        return [file for file in files if file is not None]
    raise UserError(f"there are no weights of a model {model!r:.300}, neither here nor on the hub")


def _file(model: str, name: str) -> Path | None:
    """Return a file of a folder or hub id, which is downloaded if need be; None if it has no such file."""
    if Path(model).is_dir() or Path(model).is_absolute():
        path = Path(model) / name
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(model, name))
    except EntryNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = in_one_line(error)
        raise UserError(f"there is no model {model!r:.300}, neither here nor on the hub: {reason}") from error


def _hash_of(file: Path) -> bytes:
    if not file.is_file():
        raise UserError(f"there is no file {file}")
    state = file.stat()
    return _hash_of_content(file, state.st_size, state.st_mtime_ns)


@cache
def _hash_of_content(file: Path, size: int, changed: int) -> bytes:
    """Hash a file; its size and the time of its last change tell whether it was hashed before."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        for block in iter(lambda: content.read(2**20), b""):
            digest.update(block)
    return digest.digest()
