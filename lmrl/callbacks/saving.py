"""Keeping a run: a checkpoint and, beside it, a folder for `transformers`."""

import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lmrl.modules import LanguageModule
from lmrl.modules.sharding import whole, whole_weights
from lmrl.modules.wrapped import wrapper_of

__all__ = ["KeepLast", "save_run"]


def save_run(trainer: Trainer, module: LanguageModule, name: str, scores: Mapping[str, Any] | None = None) -> None:
    """Write ``NAME.ckpt`` and the folder ``NAME`` into the run's folder (``trainer.default_root_dir``).

    All processes of a run have to call it. Under `ModelParallelStrategy`, ``NAME.ckpt`` is a folder to which each of
    them adds its shards (or a file, if the strategy says so).

    Args:
        trainer: of the run.
        module: that is trained.
        name: ``last`` or ``best``.
        scores: content of ``scores.json``, for the model card.
    """
    root = Path(trainer.default_root_dir)
    new = root / f".{name}.ckpt.new"
    if trainer.is_global_zero:
        _remove(new)  # what a killed run left
    trainer.strategy.barrier()
    trainer.save_checkpoint(new)
    weights = whole_weights(module)
    with whole(module) if wrapper_of(module) is not None else nullcontext():
        if trainer.is_global_zero:
            _replace(new, root / f"{name}.ckpt")
            module.export(root / name, scores, weights)
    trainer.strategy.barrier()


def _replace(new: Path, kept: Path) -> None:
    """Put a file or folder in the place of another. Files change in one step; a folder in two, under a hidden name."""
    if not (new.is_dir() or kept.is_dir()):
        new.replace(kept)
        return
    old = kept.with_name(f".{kept.name}.old")
    _remove(old)
    if kept.exists():
        kept.rename(old)
    new.rename(kept)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class KeepLast(Callback):
    """Keeps ``last.ckpt`` and the folder ``last``: every so many steps, and where a run ends or is told to."""

    def __init__(self, every_n_steps: int = 1000) -> None:
        """Save after every ``every_n_steps`` optimizer steps."""
        self.every_n_steps = every_n_steps
        self._saved = -1

    def on_train_batch_end(self, trainer: Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """Save if it is time."""
        if trainer.global_step and trainer.global_step % self.every_n_steps == 0:
            self._save(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Save the end."""
        self._save(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Save what a run has learned that was told to end; after an error the last good checkpoint is worth more."""
        if isinstance(exception, (KeyboardInterrupt, SIGTERMException)) and trainer.training:
            self._save(trainer, pl_module)

    def _save(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step != self._saved and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            assert isinstance(pl_module, LanguageModule)
            save_run(trainer, pl_module, "last")
            self._saved = trainer.global_step
