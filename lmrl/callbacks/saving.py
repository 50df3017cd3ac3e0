"""Keeping a run: a checkpoint and, beside it, a folder for `transformers`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch import Callback, Trainer

from lmrl.modules import LanguageModule

__all__ = ["KeepLast", "save_run"]


def save_run(trainer: Trainer, module: LanguageModule, name: str, scores: Mapping[str, Any] | None = None) -> None:
    """Write ``NAME.ckpt`` and the folder ``NAME`` into the run's folder (``trainer.default_root_dir``).

    Args:
        trainer: of the run.
        module: that is trained.
        name: ``last`` or ``best``.
        scores: content of ``scores.json``, for the model card.
    """
    root = Path(trainer.default_root_dir)
    new = root / f".{name}.ckpt.new"
    trainer.save_checkpoint(new)  # every rank takes part
    if trainer.is_global_zero:
        new.replace(root / f"{name}.ckpt")
        module.export(root / name, scores)
    trainer.strategy.barrier()


class KeepLast(Callback):
    """Keeps ``last.ckpt`` and the folder ``last``: every so many steps, at the end, and when a run is interrupted."""

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
        """Save what an interrupted run has learned; after an error the last good checkpoint is worth more."""
        if isinstance(exception, KeyboardInterrupt) and trainer.training:
            self._save(trainer, pl_module)

    def _save(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step != self._saved and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            assert isinstance(pl_module, LanguageModule)
            save_run(trainer, pl_module, "last")
            self._saved = trainer.global_step
