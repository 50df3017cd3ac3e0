"""Checkpoints in shards: folders into which each process of a run wrote its part, read by one process.

`torch.distributed.checkpoint` keeps its table of contents, and numbers beside the tensors, as pickles, which can run
any code when they are read. Here they are read as plain values or not at all.
"""

import pickle
import warnings
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

__all__ = ["check_plain", "is_sharded_checkpoint", "read_shards"]

_CONTENTS, _REST = ".metadata", "meta.pt"
_WEIGHTS = ("state_dict.", "model.")  # of ModelParallelStrategy and of FSDPStrategy
#: What the table of contents of tensors and plain values is made of.
_PLAIN = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path"},
}  # fmt: skip


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in _PLAIN.get(module, ()):
            raise pickle.UnpicklingError(f"GLOBAL {module}.{name} is no part of a table of contents")
        return super().find_class(module, name)


class _PlainReader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        found: Metadata = _PlainUnpickler(BytesIO((Path(self.path) / _CONTENTS).read_bytes())).load()
        return found


class _PlainPlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        assert read_item.type == LoadItemType.BYTE_IO
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def is_sharded_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint in shards."""
    return (path / _CONTENTS).is_file() and (path / _REST).is_file()


def read_shards(folder: Path, *, weights: bool, allow_pickle: bool) -> dict[str, Any]:
    """What a run saved beside weights and optimizer, and the weights if wanted, on the CPU; as in a single file.

    Args:
        folder: a checkpoint in shards.
        weights: add ``state_dict``.
        allow_pickle: also read objects. That can run any code.

    Raises:
        UnpicklingError: there are objects in it, and that was not allowed.
    """
    content: dict[str, Any] = torch.load(folder / _REST, map_location="cpu", weights_only=not allow_pickle)
    if not weights:
        return content
    reader = FileSystemReader(folder) if allow_pickle else _PlainReader(folder)
    entries = _entries(reader)
    prefix = next((prefix for prefix in _WEIGHTS if any(name.startswith(prefix) for name in entries)), _WEIGHTS[0])
    found = {
        name.removeprefix(prefix): torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if name.startswith(prefix) and isinstance(entry, TensorStorageMetadata)
    }
    _load({prefix.removesuffix("."): found}, reader, DefaultLoadPlanner())
    return {**content, "state_dict": found}


def check_plain(folder: Path) -> None:
    """Make sure that reading a checkpoint in shards runs no code.

    Raises:
        UnpicklingError: it holds objects.
    """
    torch.load(folder / _REST, map_location="cpu", weights_only=True)
    reader = _PlainReader(folder)
    values = {name: None for name, entry in _entries(reader).items() if isinstance(entry, BytesStorageMetadata)}
    _load(values, reader, _PlainPlanner(flatten_state_dict=False))


def _load(into: dict[str, Any], reader: FileSystemReader, planner: LoadPlanner) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is enough
        try:
            load(into, storage_reader=reader, planner=planner, no_dist=True)
        except CheckpointException as error:  # is no Exception, and hides what happened
            raise next(iter(error.failures.values()))[0] from error


def _entries(reader: FileSystemReader) -> Mapping[str, Any]:
    entries: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    return entries
