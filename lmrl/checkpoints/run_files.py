"""The files of a run: whether a folder holds one, and how it makes room for another."""

from pathlib import Path

__all__ = ["RUN_FILES", "files_of_run", "has_run", "set_aside"]

RUN_FILES = ("last.ckpt", "best.ckpt", "last", "best", "metrics.csv", "evaluation", "evaluation_last")
"""Weights, learning curves and scores; a folder with one of these files holds a run."""


def has_run(folder: Path) -> bool:
    """Whether a run was begun in a folder. Its configuration and log alone are none: nothing was learned yet."""
    return bool(files_of_run(folder))


def files_of_run(folder: Path) -> list[str]:
    """Return which of `RUN_FILES` a folder holds."""
    return [name for name in RUN_FILES if (folder / name).exists()]


def set_aside(folder: Path) -> Path | None:
    """Move a run with all that is in its folder to ``.earlier/NAME-1`` (2, 3, ...) next to it: two must not mix.

    Returns:
        Where it is now; None if there was nothing.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    kept = folder.parent / ".earlier"
    kept.mkdir(exist_ok=True)
    number = 1
    while (kept / f"{folder.name}-{number}").exists():
        number += 1
    return folder.rename(kept / f"{folder.name}-{number}")
