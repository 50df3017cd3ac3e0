"""Checkpoints read without running what is in them, in one file or in shards, and where a run keeps them.

`torch.distributed.checkpoint` keeps its table of contents, and numbers next to the tensors, as pickles, which can run
any code when they are read. Here they are read as plain values or not at all.
"""

import pickle
import struct
import warnings
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from lmrl.checkpoints.export import MANIFEST, read_manifest
from lmrl.checkpoints.run_files import has_run
from lmrl.checkpoints.zoo import ZOO_PREFIX, zoo_policy
from lmrl.errors import UserError, in_one_line
from lmrl.models.gguf import is_gguf
from lmrl.models.lora import ADAPTER_CONFIG
from lmrl.utils.configuration import config_file

__all__ = [
    "check_archive", "check_checkpoint", "check_plain", "is_checkpoint", "is_sharded_checkpoint",
    "read_checkpoint", "read_made_with", "read_shards", "resolve_checkpoint", "resolve_pretrained", "resolve_run",
    "steps_of", "unreadable", "weights_of",
]  # fmt: skip

_CONTENTS = ".metadata"
_REST = "meta.pt"
_WEIGHTS = "state_dict."  # prefix of the weights in the checkpoints of ModelParallelStrategy
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
        folder = Path(self.path)
        metadata: Metadata = _PlainUnpickler(BytesIO((folder / _CONTENTS).read_bytes())).load()
        # torch opens whatever file the table of contents names, and decodes it as the table says.
        for entry in metadata.storage_data.values():
            name = entry.relative_path
            is_name = isinstance(name, str) and Path(name).name == name
            if not is_name or (folder / name).is_symlink() or not (folder / name).is_file():
                raise UserError(f"{folder}: its table of contents must name files of the folder, got {name!r:.80}")
            if entry.transform_descriptors:
                raise UserError(f"{folder}: its tensors are transformed, which is not read here")
        return metadata


class _PlainPlanner(DefaultLoadPlanner):
    # Plain values lie next to the tensors as bytes, which torch's own planner would unpickle.
    def load_bytes(self, read_item: ReadItem, value: BytesIO) -> None:
        assert read_item.type == LoadItemType.BYTE_IO
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def is_sharded_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint in shards."""
    return (path / _CONTENTS).is_file() and (path / _REST).is_file()


def read_shards(folder: Path, *, weights: bool, allow_pickle: bool) -> dict[str, Any]:
    """Read a sharded checkpoint onto the CPU, optionally with its weights, in the layout of a single file.

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
    tensors: dict[str, TensorStorageMetadata] = {}
    num_bytes = 0
    for name, entry in _entries(reader).items():
        if isinstance(entry, TensorStorageMetadata):
            tensors[name] = entry
            num_bytes += entry.size.numel() * entry.properties.dtype.itemsize
    # Checked before memory is allocated: a damaged table could ask for any amount of it.
    if num_bytes > sum(path.stat().st_size for path in folder.iterdir() if path.is_file()):
        raise UserError(f"{folder} is damaged: its table of contents names more than its files hold")
    state_dict = {}
    for name, entry in tensors.items():
        if name.startswith(_WEIGHTS):
            state_dict[name.removeprefix(_WEIGHTS)] = torch.empty(entry.size, dtype=entry.properties.dtype)
    _load({_WEIGHTS.removesuffix("."): state_dict}, reader, DefaultLoadPlanner())
    return {**content, "state_dict": state_dict}


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
        except CheckpointException as error:
            # It is no Exception, and hides the error behind the number of its rank.
            raise next(iter(error.failures.values()))[0] from error


def _entries(reader: FileSystemReader) -> Mapping[str, Any]:
    entries: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    return entries


def is_checkpoint(path: Path) -> bool:
    """Whether there is a checkpoint: a file, or a folder of shards."""
    return path.is_file() or is_sharded_checkpoint(path)


def read_checkpoint(file: Path, allow_pickle: bool = False, *, weights: bool = False) -> dict[str, Any]:
    """The content of a checkpoint, its tensors on the disk until they are used.

    Args:
        file: checkpoint file of a run, or a folder of shards; ours hold tensors and plain values only.
        allow_pickle: also read one that holds other objects. That can run any code: only for files that you trust.
        weights: also read the weights in a folder of shards (never the optimizer); a file is always read completely.

    Raises:
        UserError: if it is damaged, holds pickled objects and that was not allowed, or is something else.
    """
    try:
        content = _content(file, weights, allow_pickle)
        if not isinstance(content["lmrl"], dict):  # what makes it ours
            raise TypeError(f"its entry 'lmrl' must be a dict, got {type(content['lmrl']).__name__}")
    except Exception as error:  # unpickling a file that is something else can end in any exception
        raise unreadable(file, error) from error
    return content


def steps_of(file: Path, allow_pickle: bool = False) -> int:
    """The number of optimizer steps before a checkpoint of Lightning was written, also of another module than ours.

    Raises:
        UserError: as `read_checkpoint`.
    """
    try:
        return int(_content(file, False, allow_pickle)["global_step"])
    except Exception as error:
        raise unreadable(file, error) from error


def _content(file: Path, weights: bool, allow_pickle: bool) -> dict[str, Any]:
    if file.is_dir():
        check_archive(file / "meta.pt")
        return read_shards(file, weights=weights, allow_pickle=allow_pickle)
    check_archive(file)
    content: dict[str, Any] = torch.load(file, map_location="cpu", mmap=True, weights_only=not allow_pickle)
    return content


def check_archive(file: Path) -> None:
    """Verify the checksums in a checkpoint of one file, which torch ignores.

    Raises:
        UserError: naming the part that is damaged.
    """
    try:
        with ZipFile(file) as archive:
            # torch does not compress, and a small compressed file could become a large one.
            for part in archive.infolist():
                if part.compress_type != ZIP_STORED:
                    raise UserError(f"{file} is not a checkpoint of lmrl: its part {part.filename!r:.80} is compressed")
            damaged = archive.testzip()
    except (BadZipFile, ValueError, EOFError, RuntimeError, OverflowError, struct.error) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file} is not a checkpoint of lmrl, or is damaged ({in_one_line(error)})") from error
    if damaged is not None:
        raise UserError(f"{file} is damaged: its part {damaged!r:.80} is not what was written")


def check_checkpoint(path: Path, allow_pickle: bool) -> None:
    """Make sure that a checkpoint is complete, and that a folder of shards may be read without running code.

    Raises:
        UserError: there is no checkpoint, it is damaged, or it holds pickled objects and that was not allowed.
    """
    if not is_checkpoint(path):
        raise UserError(f"ckpt_path must be a checkpoint file or a folder of shards, there is none at {str(path)!r}")
    if not path.is_dir():
        check_archive(path)
    elif not allow_pickle:
        try:
            check_plain(path)
        except Exception as error:
            raise unreadable(path, error) from error


def unreadable(file: object, error: Exception) -> UserError:
    """Return the message about an unreadable file: it contains objects, or is no checkpoint."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, UnpicklingError) and "GLOBAL" in str(error):
        return UserError(
            f"{file} holds pickled objects, which can run any code when they are read; if you trust where it comes "
            "from, say so with allow_pickle (--allow_pickle)"
        )
    reason = f"{type(error).__name__}: {in_one_line(error)}"
    if isinstance(error, UnpicklingError):  # whose message is about torch's options
        reason = "no weights and plain values"
    return UserError(f"{file} is not a checkpoint of lmrl, or is damaged ({reason})")


def resolve_checkpoint(path: str | Path) -> Path:
    """The checkpoint of a run folder (the best one, else the last), or itself: a file, or a folder of shards.

    Raises:
        UserError: if there is none; it names the command that makes one.
    """
    path = Path(path)
    if is_checkpoint(path):
        return path
    for name in ("best.ckpt", "last.ckpt"):
        if is_checkpoint(path / name):
            return path / name
    if path.suffix == ".ckpt":
        raise UserError(f"there is no checkpoint {path}; make it with: {_command(path.parent)}")
    runs = sorted(folder.name for folder in path.glob("*") if has_run(folder))
    if runs:
        raise UserError(f"{path} is not a run, but holds some: name one of {', '.join(runs)}, e.g. {path / runs[0]}")
    raise UserError(f"there is no best.ckpt or last.ckpt in {path}; make them with: {_command(path)}")


def resolve_run(path: str | Path) -> Path:
    """Return an exported folder (also ``best``, ``last``, ``zoo:NAME``) as it is, else call `resolve_checkpoint`.

    Raises:
        UserError: if there is none; it names the command that makes one.
    """
    # Commands also take the name of a policy of the zoo for a path.
    if str(path).startswith(ZOO_PREFIX):
        return zoo_policy(str(path)).folder
    return Path(path) if (Path(path) / MANIFEST).is_file() else resolve_checkpoint(path)


def read_made_with(file: Path, allow_pickle: bool = False) -> dict[str, Any]:
    """Read ``made_with`` of a checkpoint or exported folder: task, data and weights. Empty if it is not noted there.

    Raises:
        UserError: it cannot be read.
    """
    entry = read_manifest(file) if (file / MANIFEST).is_file() else read_checkpoint(file, allow_pickle)["lmrl"]
    made_with = entry.get("made_with")
    return made_with if isinstance(made_with, dict) else {}


def made_with_of_start(name: str) -> dict[str, Any]:
    """Read ``made_with`` of what a training starts from; empty if lmrl has not trained it."""
    made_with = read_manifest(Path(resolve_pretrained(name))).get("made_with")
    return made_with if isinstance(made_with, dict) else {}


def files_learned_from(made_with: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the files of episodes that a policy, or what it started from, was trained on.

    Args:
        made_with: record of how the policy was made.

    Returns:
        Of each file ``data_hash``, and how some of its episodes were held out: ``val_fraction`` and ``data_seed``.
    """
    files = made_with.get("learned_from")
    if isinstance(files, list):
        return [file for file in files if isinstance(file, dict)]
    if made_with.get("data_hash") is None:
        return []
    return [{name: made_with.get(name) for name in ("data_hash", "val_fraction", "data_seed")}]


def weights_of(path: str | Path, allow_pickle: bool = False) -> str | None:
    """The hash of the weights in a run, checkpoint or exported folder; None if it does not say.

    Raises:
        UserError: if there is none, or it cannot be read.
    """
    weights = read_made_with(resolve_run(path), allow_pickle).get("weights")
    return None if weights is None else str(weights)


def resolve_pretrained(name: str) -> str:
    """The Hugging Face folder of a run or of the zoo; a model folder, adapter folder, GGUF file or hub id as it is.

    Raises:
        UserError: if it looks like a path but nothing is there; it names the command that makes it.
    """
    if name.startswith(ZOO_PREFIX):
        return str(zoo_policy(name).folder)
    path = Path(name)
    for folder in (path, path / "best", path / "last"):
        if (folder / "config.json").is_file() or (folder / ADAPTER_CONFIG).is_file():
            return str(folder)
    if is_gguf(name):
        if not path.is_file():
            raise UserError(f"pretrained: there is no file {name!r}; GGUF files are read from this machine alone")
        return name
    in_folder = sorted(path.glob("*.gguf")) if path.is_dir() else []
    if in_folder:
        raise UserError(f"pretrained: {name!r} is a folder with GGUF files, name one of them: {in_folder[0]}")
    # A hub id is OWNER/NAME at most.
    is_path = path.exists() or path.is_absolute() or name.startswith((".", "runs/")) or len(path.parts) > 2
    if is_path:
        raise UserError(f"pretrained: there is no trained model in {name!r}; make it with: {_command(path)}")
    return name


def _command(run: Path) -> str:
    """Return the command that trains the run of a folder ``TASK/ALGORITHM``, if there is such a configuration."""
    shipped = f"configs/{'/'.join(run.parts[-2:])}.yaml"
    try:
        config_file(shipped)
    except UserError:
        shipped = "configs/TASK/ALGORITHM.yaml"
    return f"lmrl fit --config {shipped}"
