"""Model folders as they come from anywhere: checked before a library reads them or makes room for their weights."""

import json
import math
import re
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import AutoConfig, PreTrainedConfig

from lmrl.errors import UserError, in_one_line
from lmrl.utils.files import json_of_file

__all__ = [
    "CHOOSE_CODE", "Held", "check_architecture", "check_folder", "damaged", "held_by_folder", "is_limited",
    "limited_weights", "model_config", "read_tensors", "tensor_metadata", "weights_held",
]  # fmt: skip

_JSON_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "adapter_config.json",
    "special_tokens_map.json",
)
CHOOSE_CODE = (
    "auto_map",
    "attn_implementation",
    "experts_implementation",
    "kernel_config",
    "quantization_config",
    "transformers_weights",
    "use_kernels",
)
"""Settings of a transformers configuration that choose code or files rather than the shape of a model."""
# Names of settings by which transformers makes lists, but not sizes of each layer, as vocab_size_per_layer_input.
_LIST_LENGTHS = re.compile("^(?!.*_size).*(layer|label|depth|block_count)")


class Held(NamedTuple):
    """The content of a file, by which a model is checked before it is built."""

    tensors: int
    numbers: int
    """In all tensors together."""


def check_folder(folder: str) -> None:
    """Make sure that a model folder is whole, that its configuration fits its weights, and that it names no other file.

    What is a hub id, and no folder, is left to the library.

    Raises:
        UserError: naming the file, and the line and column where it is no JSON.
    """
    if not Path(folder).is_dir():
        return
    for name in _JSON_FILES:
        path = Path(folder) / name
        if path.is_file():
            json_of_file(path)
    for path in sorted(Path(folder).glob("*.index.json")):
        # The table of a model in several files could name files outside of its folder.
        files = json_of_file(path).get("weight_map")
        if not isinstance(files, dict):
            raise UserError(f"{path} is damaged: weight_map must be an object")
        for name in files.values():
            if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\\" in name:
                raise UserError(f"{path} must name files of its own folder, got {name!r:.80}")
    for path in sorted(Path(folder).glob("*.safetensors")):
        tensor_metadata(path)
    config = Path(folder) / "config.json"
    if not config.is_file():
        return
    if (Path(folder) / "adapter_config.json").is_file():  # which transformers would load by itself
        raise UserError(f"{folder} holds a model and adapters (adapter_config.json): remove one of them")
    settings = json_of_file(config)
    if settings.get("quantization_config") is not None:
        raise UserError(f"{config} asks for quantization_config: quantized models cannot be read, only whole ones")
    check_architecture(settings, held_by_folder(folder), config)
    try:
        AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError):  # only the loader can judge it, which runs code that the user has allowed
        return
    except Exception as error:  # a value of another kind
        raise damaged(config, error) from error


def held_by_folder(folder: str | Path) -> Held:
    """Return what the weight files of a model folder hold, at most.

    Raises:
        UserError: a safetensors file is damaged.
    """
    tensors = 0
    numbers = 0
    for path in sorted(Path(folder).glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():
                    tensors += 1
                    numbers += math.prod(file.get_slice(name).get_shape())
        except (SafetensorError, ValueError, struct.error, RuntimeError) as error:
            raise damaged(path, error) from error
    # Files of torch do not say what they hold before they are read. No number takes less than a byte.
    for path in Path(folder).glob("*.bin"):
        tensors += 10_000
        numbers += path.stat().st_size
    return Held(tensors, numbers)


def weights_held(weights: Mapping[str, Any], where: Path) -> Held:
    """Return what the state dict of a file holds.

    Raises:
        UserError: an entry is no tensor, or claims more numbers than are there.
    """
    sizes: dict[int, int] = {}
    for name, tensor in weights.items():
        if str(name).endswith("_extra_state"):  # torch puts it there, and it may be anything
            continue
        if not isinstance(tensor, Tensor):
            raise UserError(f"{where} is damaged: its weight {name!r:.80} is no tensor")
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError) as error:  # sparse ones have none
            raise UserError(f"{where} is damaged: its weight {name!r:.80} is no plain tensor") from error
        # A tensor can name the same memory again and again.
        if tensor.device.type != "cpu" or tensor.numel() * tensor.element_size() > storage.nbytes():
            raise UserError(f"{where} is damaged: its weight {name!r:.80} holds fewer numbers than it says")
        sizes[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
    return Held(len(weights), sum(sizes.values()))


def check_architecture(settings: Any, held: Held, where: Path) -> None:
    """Make sure that no number in a configuration is far above what a file has weights for.

    `transformers` makes lists of that length when it reads a configuration, before there is any model.

    Raises:
        UserError: naming the setting.
    """
    inner: Iterable[Any] = settings if isinstance(settings, list) else ()
    if isinstance(settings, Mapping):
        for name, value in settings.items():
            if isinstance(value, int) and _LIST_LENGTHS.search(str(name)) and value > held.tensors + 1000:
                raise UserError(f"{where}: {name} is {value:.3g}, and there are {held.tensors} weights: it is damaged")
        inner = settings.values()
    for value in inner:
        if isinstance(value, (list, Mapping)):
            check_architecture(value, held, where)


class _Limited(threading.local):
    count = 0


_limited = _Limited()


@contextmanager
def limited_weights(held: Held, where: str | Path) -> Iterator[None]:
    """Inside, refuse to build a model that is far larger than what a file holds, before its memory is touched.

    The limits leave room for tied weights, which a model has twice until they are tied, and for copies that learn.

    Args:
        held: what the file holds.
        where: its name, for the message.

    Raises:
        UserError: the model is too large.
    """
    thread = threading.get_ident()
    parts_left = 20 * held.tensors + 2_000
    numbers_left = 8 * held.numbers + 2**22

    def count(module: nn.Module, name: str, part: Any) -> None:
        nonlocal parts_left, numbers_left
        if threading.get_ident() != thread:  # hooks are called for modules of all threads
            return
        parts_left -= 1
        if isinstance(part, Tensor):
            numbers_left -= part.numel()
        if parts_left < 0 or numbers_left < 0:
            raise UserError(f"{where} describes a model that is larger than the weights that it holds: it is damaged")

    _limited.count += 1
    hooks = [
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
        register_module_module_registration_hook(count),
    ]
    try:
        yield
    finally:
        _limited.count -= 1
        for hook in hooks:
            hook.remove()


def is_limited() -> bool:
    """Whether this thread is inside of `limited_weights`."""
    return _limited.count > 0


def model_config(pretrained: str, trust_remote_code: bool = False) -> PreTrainedConfig:
    """Return the configuration of a folder or hub id without what would choose code or other files.

    Raises:
        UserError: it asks for weights of another form.
    """
    config: PreTrainedConfig = AutoConfig.from_pretrained(pretrained, trust_remote_code=trust_remote_code)
    if getattr(config, "quantization_config", None) is not None:
        raise UserError(f"{pretrained} asks for quantization_config: quantized models cannot be read, only whole ones")
    # Both reach the configurations inside of this one, too.
    config._attn_implementation = None
    if hasattr(config, "_experts_implementation"):
        config._experts_implementation = None
    for name in ("kernel_config", "transformers_weights", "use_kernels"):
        if name in vars(config):
            delattr(config, name)
    return config


def tensor_metadata(path: Path) -> dict[str, str]:
    """The texts next to the tensors of a file, whose header agrees with its size.

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
    """Return the message about a file or folder that a library could not read."""
    return UserError(f"{path} is damaged or of another kind: {type(error).__name__}: {in_one_line(error)}")
