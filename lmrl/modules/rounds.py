"""Numbers that belong to a moment, not to a batch."""

from collections.abc import Mapping

import torch
from lightning.pytorch import Trainer

__all__ = ["log_now"]


def log_now(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Write metrics under the present step, wherever in the loop that is (``self.log`` works in some hooks alone)."""
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=trainer.global_step)
    trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})
