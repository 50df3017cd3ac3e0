"""Where a run keeps its weights: ``last`` and ``best``, each a checkpoint with a Hugging Face folder beside it."""

from itertools import count
from pathlib import Path

from lmrl.errors import UserError
from lmrl.models.checkpoint import is_checkpoint, read_checkpoint
from lmrl.models.export import MANIFEST, read_manifest
from lmrl.models.lora import ADAPTER_CONFIG

__all__ = ["has_run", "resolve_checkpoint", "resolve_pretrained", "resolve_run", "set_aside", "weights_of"]

RUN_FILES = ("last.ckpt", "best.ckpt", "last", "best", "metrics.csv", "evaluation", "evaluation_last")
"""Of these, one is enough for a folder to hold a run: weights, learning curves or scores."""
_KEPT = ("best", "last")


def resolve_checkpoint(path: str | Path) -> Path:
    """The checkpoint of a run folder (the best one, else the last), or itself: a file, or a folder of shards.

    Raises:
        UserError: if there is none; it names the command that makes one.
    """
    path = Path(path)
    if is_checkpoint(path):
        return path
    for name in _KEPT:
        if is_checkpoint(path / f"{name}.ckpt"):
            return path / f"{name}.ckpt"
    if path.suffix == ".ckpt":
        raise UserError(f"there is no checkpoint {path}; make it with: {_command(path.parent)}")
    raise UserError(f"there is no best.ckpt or last.ckpt in {path}; make them with: {_command(path)}")


def resolve_run(path: str | Path) -> Path:
    """What plays: an exported folder (also ``best`` and ``last`` of a run) itself, else as `resolve_checkpoint`.

    Raises:
        UserError: if there is none; it names the command that makes one.
    """
    return Path(path) if (Path(path) / MANIFEST).is_file() else resolve_checkpoint(path)


def weights_of(path: str | Path, allow_pickle: bool = False) -> str | None:
    """The hash of the weights in a run, checkpoint or exported folder; None if it does not say.

    Raises:
        UserError: if there is none, or it cannot be read.
    """
    found = resolve_run(path)
    entry = read_manifest(found) if (found / MANIFEST).is_file() else read_checkpoint(found, allow_pickle)["lmrl"]
    weights = entry.get("made_with", {}).get("weights")
    return None if weights is None else str(weights)


def has_run(folder: Path) -> bool:
    """Whether a run was begun in a folder. Its configuration and log alone are none: nothing was learned yet."""
    return any((folder / name).exists() for name in RUN_FILES)


def set_aside(folder: Path) -> Path | None:
    """Move a run with all that is in its folder to ``.earlier/NAME-1`` (2, 3, ...) beside it: two must not mix.

    Returns:
        Where it is now; None if there was nothing.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    kept = folder.parent / ".earlier"
    kept.mkdir(exist_ok=True)
    free = next(name for number in count(1) if not (name := kept / f"{folder.name}-{number}").exists())
    return folder.rename(free)


def resolve_pretrained(name: str) -> str:
    """The Hugging Face folder of a run, a folder of a model or of adapters itself, or a hub id as it is.

    Raises:
        UserError: if it looks like a path but nothing is there; it names the command that makes it.
    """
    path = Path(name)
    for folder in (path, *(path / kept for kept in _KEPT)):
        if any((folder / name).is_file() for name in ("config.json", ADAPTER_CONFIG)):
            return str(folder)
    is_path = path.exists() or path.is_absolute() or name.startswith((".", "runs/")) or len(path.parts) > 2
    if is_path:
        raise UserError(f"pretrained: there is no trained model in {name!r}; make it with: {_command(path)}")
    return name


def _command(run: Path) -> str:
    task, algorithm = (*run.parts[-2:], "TASK", "ALGORITHM")[:2] if len(run.parts) > 1 else ("TASK", "ALGORITHM")
    return f"lmrl fit --config configs/{task}/{algorithm}.yaml"
