"""Progress of a training for the terminal: steps, loss and return."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any

import lightning as L
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lmrl.callbacks.compute_budget import ComputeBudget
from lmrl.datamodules import OnlineDataModule
from lmrl.errors import check_range

__all__ = ["TrainingProgress", "say", "while_evaluating"]

_REFRESH = 0.1  # seconds between two readings of the metrics, which cost time on a GPU
_RETURN = "/return_mean"


class TrainingProgress(ProgressBar):
    """A bar of optimizer steps with loss, newest return and round; where the output is no terminal, lines of the same.

    The count continues where a checkpoint ended. Only the first process writes, to standard error.
    """

    def __init__(self, seconds: float = 30.0) -> None:
        """Choose how often lines are written.

        Args:
            seconds: between two lines where the output is no terminal; each evaluation also writes one.

        Raises:
            UserError: for a number that is not positive.
        """
        super().__init__()
        check_range("(0, inf)", seconds=seconds)
        self.seconds = seconds
        #: Whether training began: a resumed run may have no step left.
        self.started = False
        self._enabled = True
        self._bar: Progress | None = None
        self._task = TaskID(0)
        # Times of `monotonic`; `_start_time` is 0 while nothing is trained.
        self._start_time = 0.0
        self._last_look_time = 0.0
        self._last_line_time = 0.0
        self._validation_start_time = 0.0
        self._evaluation_seconds = 0.0  # seconds of validation and evaluation since the start
        self._first_step = 0
        self._total_steps = 0  # 0: there is no limit to show
        self._budget: ComputeBudget | None = None
        self._spent_before = 0.0
        self._returns: list[float] = []
        self._line: list[str] = []

    def enable(self) -> None:
        """Show."""
        self._enabled = True

    def disable(self) -> None:
        """Show nothing: this process is not the first."""
        self._enabled = False

    def on_train_start(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Find out how many steps there will be, and show that none is done yet."""
        self.started = True
        if not self._enabled:
            return
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        self._budget = next((callback for callback in callbacks if isinstance(callback, ComputeBudget)), None)
        self._spent_before = 0.0 if self._budget is None else self._budget.share
        # Infinite or -1 where only time or the user ends the run: then there is no total to show. Nor is there one
        # where a budget ends it: Lightning then has its own limit of 1,000 epochs, which nobody means to reach.
        steps = trainer.estimated_stepping_batches
        is_limited = 0 < steps < float("inf") and (self._budget is None or trainer.max_steps > 0)
        self._total_steps = int(steps) if is_limited else 0
        self._first_step = trainer.global_step
        self._start_time = monotonic()
        self._last_look_time = self._start_time
        self._last_line_time = self._start_time
        self._evaluation_seconds = 0.0
        console = Console(stderr=True)
        if console.is_terminal:
            ends = (TimeElapsedColumn(), TextColumn("<"), TimeRemainingColumn())
            columns = (TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.fields[text]}"), *ends)
            self._bar = Progress(*columns, console=console)
            self._task = self._bar.add_task(
                self._steps(trainer), total=self._total_steps or None, completed=self._first_step, text=""
            )
            self._bar.start()

    def on_train_batch_end(self, trainer: Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """Show the progress, at most ten times a second."""
        self._show(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Show that validation takes the time."""
        self.say("validating")
        self._validation_start_time = monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Show the steps again."""
        self.add_evaluation(monotonic() - self._validation_start_time)
        self._show(trainer, always=self._bar is not None)

    def on_train_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Show the end."""
        self._close(trainer)

    def on_exception(self, trainer: Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave the terminal as it was."""
        self._close(trainer)

    def teardown(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Leave the terminal as it was, whatever happened."""
        self._stop()

    def say(self, what: str) -> None:
        """Show what takes the time between two steps; where the output is no terminal, if the last line is old."""
        now = monotonic()
        if self._bar is not None:
            self._bar.update(self._task, text=what, refresh=True)
        elif self._enabled and self._start_time and now - self._last_line_time >= self.seconds:
            self._last_line_time = now
            print(what, file=sys.stderr, flush=True)

    def add_evaluation(self, seconds: float) -> None:
        """Leave out of the pace of the steps what a validation or a played evaluation took."""
        self._evaluation_seconds += seconds

    def _close(self, trainer: Trainer) -> None:
        if self._start_time and self._enabled:
            self._show(trainer, always=True)
        self._stop()

    def _stop(self) -> None:
        self._start_time = 0.0
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _show(self, trainer: Trainer, always: bool = False) -> None:
        now = monotonic()
        if not self._enabled or not self._start_time or (not always and now - self._last_look_time < _REFRESH):
            return
        self._last_look_time = now
        numbers, is_new_return = self._numbers(trainer)
        if self._bar is not None:
            step = trainer.global_step
            self._bar.update(self._task, completed=step, description=self._steps(trainer), text=", ".join(numbers))
        else:
            line = [self._steps(trainer), *numbers]
            # In a log file a line counts for its news: an evaluation, the end, or some time gone by. The last step's
            # loss may be logged again when it is no longer news.
            is_new_step = self._line[:1] != line[:1]
            is_due = always or now - self._last_line_time >= self.seconds
            if is_new_return or (is_new_step and is_due):
                self._line = line
                self._last_line_time = now
                print(", ".join([*line, *self._pace(trainer, now)]), file=sys.stderr, flush=True)

    def _steps(self, trainer: Trainer) -> str:
        return f"step {trainer.global_step}" + (f"/{self._total_steps}" if self._total_steps else "")

    def _numbers(self, trainer: Trainer) -> tuple[list[str], bool]:
        """Round, loss and return, where they exist; and whether the return is a new one."""
        metrics = trainer.callback_metrics
        data = getattr(trainer, "datamodule", None)
        parts = []
        if self._budget is not None:
            parts.append(f"{self._budget.share:.0%} of the compute")
        if isinstance(data, OnlineDataModule):
            parts.append(f"round {data.round}")
        if "train/loss" in metrics:
            parts.append(f"loss {float(metrics['train/loss']):.4g}")
        returns = []
        for name, value in metrics.items():
            if name.startswith("eval/") and name.endswith(_RETURN):
                returns.append(float(value))
                parts.append(f"return {float(value):.2f}")
        is_new = returns != self._returns
        self._returns = returns
        return parts, is_new

    def _pace(self, trainer: Trainer, now: float) -> list[str]:
        """Steps per second of this process without its evaluations, and the time that the rest will take with them."""
        done = trainer.global_step - self._first_step
        took = now - self._start_time
        stepped = took - self._evaluation_seconds
        if not done or stepped <= 0:
            return []
        # The run ends at the first of its limits: its steps, or its compute.
        estimates = []
        if self._total_steps:
            steps_left = max(0, self._total_steps - trainer.global_step)
            estimates.append(steps_left * took / done)
        if self._budget is not None and self._budget.share > self._spent_before:
            share_left = 1 - self._budget.share
            share_spent = self._budget.share - self._spent_before
            estimates.append(share_left * took / share_spent)
        pace = [f"{done / stepped:.3g} steps/s"]
        left = timedelta(seconds=round(max(0.0, min(estimates, default=0.0))))
        if left:
            pace.append(f"{left} left")
        return pace


def say(trainer: Trainer, what: str) -> None:
    """Have the progress of a training say what takes the time until the next step."""
    bar = trainer.progress_bar_callback
    if isinstance(bar, TrainingProgress):
        bar.say(what)


@contextmanager
def while_evaluating(trainer: Trainer, what: str) -> Iterator[None]:
    """Have the progress bar of a training say what is evaluated, and leave the time out of its steps per second."""
    say(trainer, what)
    began = monotonic()
    yield
    bar = trainer.progress_bar_callback
    if isinstance(bar, TrainingProgress):
        bar.add_evaluation(monotonic() - began)
