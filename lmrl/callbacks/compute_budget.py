"""A training that ends when its compute is used up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch import Callback, Trainer

from lmrl.callbacks.saving import export_run_folder, is_between_steps
from lmrl.datamodules import OnlineDataModule
from lmrl.errors import UserError, check_range
from lmrl.models.sharding import full_state_dict
from lmrl.modules import LanguageModule
from lmrl.tokens.amounts import Amounts
from lmrl.training.throughput import parts_of

__all__ = ["ComputeBudget"]

_TERA = 1e12


class ComputeBudget(Callback):
    """Ends a training at the last step or round that fits into a number of floating-point operations.

    The budget counts the training steps (`lmrl.modules.LanguageModule.step_cost`), and playing rounds and scoring their
    tokens (`round_cost`), on all processes together. It counts matrices and attention, by the formula of
    `lmrl.training.flops`. Evaluation and validation are free. The count follows from the tokens, so it is the same on
    every machine and for every way to compute them.

    The next step is taken to cost what the last one did, the next round what the last round did. The count is logged as
    ``compute/tflop``, and a resumed run continues it.

    Learning-rate schedules do not know the budget: give a constant one, or ``trainer.max_steps`` that it reaches.
    ``lmrl fit --compute.tflop=40`` adds the callback.
    """

    def __init__(self, tflop: float, save_at: Sequence[float] = ()) -> None:
        """Choose the budget.

        Args:
            tflop: in 10^12 operations.
            save_at: shares of the budget, in (0, 1), at which the policy is kept in a folder of the run: ``at_25``
                after a quarter. `lmrl evaluate --policy RUN/at_25` plays it.

        Raises:
            UserError: for a number out of range.
        """
        check_range("(0, inf)", tflop=tflop)
        for share in save_at:
            check_range("(0, 1)", save_at=share)
        self.budget = tflop * _TERA
        self.save_at = sorted(save_at)
        self._begin()

    def _begin(self) -> None:
        #: Operations so far.
        self.spent = 0.0
        self._spent_at_last_step = 0.0  # a round since then counts for the next step
        self._last_round_operations = 0.0
        self._last_step_operations = 0.0  # during a step: those of its micro-batches so far
        self._step_is_over = True
        self._seen = Amounts()
        self._rounds_seen = 0
        self._data: Any = None  # the datamodule; None before training begins

    @property
    def share(self) -> float:
        """Return the share of the budget that is spent."""
        return self.spent / self.budget

    def setup(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Become the first callback: a checkpoint that another one writes after a step then counts that step."""
        if stage == "fit" and trainer.global_step == 0:
            self._begin()  # the same object may have been used for another run
        self._trainer = trainer
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        others = [callback for callback in callbacks if callback is not self]
        trainer.callbacks = [self, *others]  # type: ignore[attr-defined]

    def on_train_start(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Ask the algorithm what it costs.

        Raises:
            UserError: the module is no `lmrl.modules.LanguageModule`, so its costs are unknown.
        """
        if not isinstance(pl_module, LanguageModule):
            kind = type(pl_module).__name__
            raise UserError(f"a compute budget needs an lmrl.modules.LanguageModule, whose costs are known, got {kind}")
        self._module = pl_module
        self._data = trainer.datamodule  # type: ignore[attr-defined]
        self._step_cost = pl_module.step_cost()
        self._round_cost = pl_module.round_cost()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add a batch, and the round that was played for it; end the training if nothing more fits."""
        self._add_rounds()
        if self._step_is_over:
            self._last_step_operations = 0.0
        operations = sum(self._step_cost.of_batch(part) for part in parts_of(batch))
        self._last_step_operations += self._over_processes(trainer, operations)
        self._step_is_over = is_between_steps(trainer)
        if not self._step_is_over:
            return
        self.spent += self._last_step_operations
        pl_module.log("compute/tflop", self.spent / _TERA)
        for share in self.save_at:
            if self._spent_at_last_step < share * self.budget <= self.spent:
                self._save(trainer, f"at_{round(100 * share)}")
        self._spent_at_last_step = self.spent
        if self.spent + self._next() > self.budget:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Print what was spent, and what the next step with its round would need."""
        if trainer.is_global_zero:
            spent = f"{self.spent / _TERA:.4g} of {self.budget / _TERA:.4g} TFLOP spent"
            print(f"compute: {spent} in {trainer.global_step} steps; the next step needs {self._next() / _TERA:.2g}")

    def state_dict(self) -> dict[str, Any]:
        """Operations so far, of the last round, of the last step, and of the next step with its round."""
        self._add_rounds()
        return {
            "next": self._next(),
            "spent": self.spent,
            "spent_at_last_step": self._spent_at_last_step,
            "round": self._last_round_operations,
            "step": self._last_step_operations,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the count. If the run had ended, stop it here: later, a round would have been played for a step."""
        self.spent = float(state_dict["spent"])
        if self.spent + float(state_dict.get("next", 0.0)) > self.budget:
            self._trainer.should_stop = True
        self._spent_at_last_step = float(state_dict["spent_at_last_step"])
        self._last_round_operations = float(state_dict["round"])
        self._last_step_operations = float(state_dict["step"])

    def _next(self) -> float:
        """Return what the next step costs, with the round that has to be played for it."""
        is_round_due = isinstance(self._data, OnlineDataModule) and self._data.round_is_used_up
        return self._last_step_operations + (self._last_round_operations if is_round_due else 0.0)

    def _add_rounds(self) -> None:
        """Add the rounds that were played since the last time. Each process has all of their episodes."""
        if not isinstance(self._data, OnlineDataModule) or self._data.collected == self._seen:
            return
        new = self._data.collected.minus(self._seen)
        self._seen = self._data.collected
        played = float(self._round_cost.of_amounts(new))
        self.spent += played
        # There are several rounds where a critic warms up, or where a filter has left nothing of one.
        self._last_round_operations = played / (self._data.collected_rounds - self._rounds_seen)
        self._rounds_seen = self._data.collected_rounds

    @staticmethod
    def _over_processes(trainer: Trainer, operations: int) -> float:
        if trainer.world_size == 1:
            return float(operations)
        mine = torch.tensor(float(operations), dtype=torch.float64, device=trainer.strategy.root_device)
        return float(trainer.strategy.reduce(mine, reduce_op="sum"))

    def _save(self, trainer: Trainer, name: str) -> None:
        folder = Path(trainer.default_root_dir) / name
        export_run_folder(trainer, self._module, folder, None, full_state_dict(self._module))
