"""Where a run keeps its weights: ``last`` and ``best``, each a checkpoint with a Hugging Face folder beside it."""

from pathlib import Path

from lmrl.errors import UserError
from lmrl.models.checkpoint import is_checkpoint
from lmrl.models.lora import ADAPTER_CONFIG

__all__ = ["resolve_checkpoint", "resolve_pretrained"]

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
