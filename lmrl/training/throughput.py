"""Speed of training: tokens per second, MFU, and the share of the time that it waits for data."""

from collections.abc import Iterable
from time import perf_counter
from typing import Any

import lightning as L
import torch
from lightning.pytorch import Callback, Trainer

from lmrl.datamodules.online import OnlineDataModule
from lmrl.tokens.collate import TokenBatch
from lmrl.training.flops import StepCost, data_sheet_peak

__all__ = ["Throughput", "parts_of"]


class Throughput(Callback):
    """Logs the group ``perf/`` of training every `log_every_n_steps`, over the steps since the last time.

    ``perf/tokens_per_s`` counts the ids that training steps read, without padding, on all processes together. Where
    rounds are played that key is of playing, and training logs ``perf/train_tokens_per_s``. ``perf/mfu`` is the FLOPs
    that the steps require (`lmrl.training.flops`), as a share of the peak of the GPU; it is left out where the peak is
    unknown. ``perf/data_wait`` is the share of the time in which the loop waits for its next batch.

    The time is that of batches and steps. Validation, evaluation, checkpoints, and the playing and preparing of rounds
    do not count. The device is not waited for: over several steps, the time in which they are issued is that in which
    they run.
    """

    def __init__(self) -> None:
        self._peak: float | None = None
        self._cost = StepCost()
        self._last_row = 0  # its optimizer step
        self._fetch_began = 0.0
        self._collected = 0.0  # seconds of rounds, when the fetch began
        self._step_began = 0.0
        self._forget()

    def setup(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Become the first callback: what others do at the end of a batch is then no part of the step."""
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        others = [callback for callback in callbacks if callback is not self]
        trainer.callbacks = [self, *others]  # type: ignore[attr-defined]

    def on_train_start(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Measure each fetch of a batch, where Lightning's profilers do."""
        self._last_row = trainer.global_step
        self._peak = _peak(trainer, pl_module.device)
        if self._peak is not None:
            module: Any = pl_module  # a `LanguageModule`, which imports this file
            self._cost = module.step_cost()
        self._data = trainer.datamodule  # type: ignore[attr-defined]
        loop: Any = trainer.fit_loop.epoch_loop
        profile_start = loop._on_before_fetch
        profile_end = loop._on_after_fetch

        def before_fetch() -> None:
            profile_start()
            self._collected = self._seconds_of_rounds()
            self._fetch_began = perf_counter()

        def after_fetch() -> None:
            self._step_began = perf_counter()
            # A round is played and prepared while its first batch is waited for.
            collecting = self._seconds_of_rounds() - self._collected
            self._waited += self._step_began - self._fetch_began - collecting
            profile_end()

        loop._on_before_fetch = before_fetch
        loop._on_after_fetch = after_fetch

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a batch; log where the trainer writes a row."""
        self._stepped += perf_counter() - self._step_began
        for part in parts_of(batch):
            self._ids += sum(part.lengths)
            self._flops += self._cost.of_batch(part)
        step = trainer.global_step
        # The batches of an accumulated step share its number; the last one of them makes the step.
        every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
        if step == self._last_row or not every or step % every:
            return
        self._last_row = step
        seconds = self._waited + self._stepped
        metrics = {"perf/data_wait": self._waited / seconds}
        if self._peak is not None:
            metrics["perf/mfu"] = self._flops / seconds / self._peak
        pl_module.log_dict(metrics, sync_dist=True)
        name = "train_tokens_per_s" if isinstance(self._data, OnlineDataModule) else "tokens_per_s"
        pl_module.log(f"perf/{name}", self._ids / seconds, sync_dist=True, reduce_fx="sum")
        self._forget()

    def _seconds_of_rounds(self) -> float:
        return self._data.collecting_seconds if isinstance(self._data, OnlineDataModule) else 0.0

    def _forget(self) -> None:
        """Begin to count again."""
        self._waited = 0.0
        self._stepped = 0.0
        self._ids = 0
        self._flops = 0


def parts_of(batch: Any) -> Iterable[TokenBatch]:
    """Return a batch, or the batches of several sources that a step takes together."""
    parts = batch.values() if isinstance(batch, dict) else [batch]
    return [part for part in parts if isinstance(part, TokenBatch)]


def _peak(trainer: Trainer, device: torch.device) -> float | None:
    """Return the FLOP/s that a device can do at most in the precision of a run; None if that is unknown."""
    if device.type != "cuda":
        return None
    peak = data_sheet_peak(torch.cuda.get_device_name(device))
    if peak is None or "16" in str(trainer.precision):
        return peak
    # TF32 is half as fast as bfloat16 on the cards of the table. Without it, the tensor cores are idle.
    return peak / 2 if torch.get_float32_matmul_precision() != "highest" else None
