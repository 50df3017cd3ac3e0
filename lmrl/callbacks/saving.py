"""Saving a run: a checkpoint and, next to it, a folder for `transformers`."""

import shutil
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from time import monotonic
from types import FrameType
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor

from lmrl.checkpoints.reading import read_checkpoint
from lmrl.checkpoints.saving import note_weights, saves_adapters
from lmrl.errors import check_range
from lmrl.models.sharding import full_state_dict, is_sharded
from lmrl.modules import LanguageModule
from lmrl.utils.distributed import shared_work
from lmrl.utils.files import remove, replace

__all__ = ["KeepLast", "export_run_folder", "is_between_steps", "save_again", "save_run"]

_NOTIFIER = "_sigterm_notifier_fn"
_PATIENCE = 20.0  # seconds for the other processes of a run to end, after all of them have saved


def save_run(trainer: Trainer, module: LanguageModule, name: str, scores: Mapping[str, Any] | None = None) -> None:
    """Write ``NAME.ckpt`` and the folder ``NAME`` into the run's folder (``trainer.default_root_dir``).

    All processes of a run have to call it. Under `ModelParallelStrategy`, ``NAME.ckpt`` is a folder to which each of
    them adds its shards (or a file, if the strategy says so).

    Args:
        trainer: the trainer of the run.
        module: the module that is trained.
        name: ``last`` or ``best``.
        scores: content of ``scores.json``, for the model card.
    """
    write_unpublished(trainer, module, name, scores)
    publish_checkpoint(trainer, name)


def write_unpublished(
    trainer: Trainer, module: LanguageModule, name: str, scores: Mapping[str, Any] | None = None
) -> None:
    """Write the folder and, under a hidden name next to it, the checkpoint. `publish_checkpoint` gives it its name."""
    root = Path(trainer.default_root_dir)
    checkpoint = _unpublished_path(root, name)
    if trainer.is_global_zero:
        remove(checkpoint)  # what a killed run left
    trainer.strategy.barrier()
    weights = full_state_dict(module)
    if is_sharded(module):
        # Every process writes its part of the checkpoint, and only the first has the weights to hash.
        note_weights(module, weights)
        module.made_with = trainer.strategy.broadcast(module.made_with)
    try:
        trainer.save_checkpoint(checkpoint)
        export_run_folder(trainer, module, root / name, scores, weights)
    except BaseException:  # a full disk
        if trainer.is_global_zero:
            remove(checkpoint)
        raise


def publish_checkpoint(trainer: Trainer, name: str) -> None:
    """Move the checkpoint of `write_unpublished` into its place, after all earlier log entries are on the disk.

    The folder is written before its checkpoint: a run that has a checkpoint also has the folder of that step.
    """
    root = Path(trainer.default_root_dir)
    try:
        for logger in trainer.loggers:
            logger.save()
        if trainer.is_global_zero:
            replace(_unpublished_path(root, name), root / f"{name}.ckpt")
    except BaseException:
        if trainer.is_global_zero:
            remove(_unpublished_path(root, name))
        raise


def save_again(
    trainer: Trainer, module: LanguageModule, name: str, scores: Mapping[str, Any] | None, callback: Callback
) -> None:
    """Write ``NAME.ckpt`` and the folder ``NAME`` of a resumed run before its first step.

    Until then only a part of the training's state is restored. The checkpoint is therefore the one that the run was
    resumed from, with the present state of `callback`.
    """
    root = Path(trainer.default_root_dir)
    source = Path(str(trainer.ckpt_path))
    new = _unpublished_path(root, name)
    if trainer.is_global_zero:
        remove(new)
        content = read_checkpoint(source, allow_pickle=True)  # the trainer has read it before
        content["callbacks"][callback.state_key] = callback.state_dict()
        if source.is_dir():  # shards, next to a file with all the rest
            shutil.copytree(source, new)
            torch.save(content, new / "meta.pt")
        else:
            torch.save(content, new)
    export_run_folder(trainer, module, root / name, scores, full_state_dict(module))
    publish_checkpoint(trainer, name)


def export_run_folder(
    trainer: Trainer,
    module: LanguageModule,
    folder: Path,
    scores: Mapping[str, Any] | None,
    weights: Mapping[str, Tensor] | None,
) -> None:
    """Export the module on the first process, which has the full weights; the others wait for it."""
    if trainer.is_global_zero:
        module.export(folder, scores, weights, merge=not saves_adapters(module))
    trainer.strategy.barrier()


def _unpublished_path(root: Path, name: str) -> Path:
    return root / f".{name}.ckpt.new"


def is_between_steps(trainer: Trainer) -> bool:
    """Whether no optimizer step has begun: no gradients are pending, and the schedule has followed the last step."""
    loop = trainer.fit_loop.epoch_loop
    batches: Any = loop.batch_progress.current  # Lightning's base class does not declare `processed`
    if batches.processed != batches.ready or loop._should_accumulate():
        return False
    schedules = trainer.lr_scheduler_configs
    # Only a single schedule that follows each step counts as many steps as the run has.
    follows_steps = len(schedules) == 1 and schedules[0].interval == "step" and schedules[0].frequency == 1
    return not follows_steps or loop.scheduler_progress.total.completed == trainer.global_step


class _SignalsBetweenSteps:
    """Holds SIGINT and SIGTERM back until the current optimizer step is complete, then passes them to their handlers.

    A checkpoint has no place for the gradients of half a step, so a run can only be resumed between two steps.

    Processes that train together agree on a signal after each step, whichever of them got it: they save together, so
    they must end after the same step. Ctrl-C ends a share of a rollout or an evaluation at once on its process; the
    other processes learn of it at the end of their share (`map_over_ranks`).
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._together = trainer.world_size > 1
        self._handlers: dict[int, Any] = {}
        self._waiting: int | None = None
        #: Whether a signal would end this process while the others run on. Saving needs all processes and would then
        #: hang.
        self.ends_without_others = self._together

    def replace_notifier(self) -> None:
        """Replace Lightning's handler of SIGTERM, which it is about to register.

        Lightning's handler communicates wherever the signal reaches it. The other processes are elsewhere, and then all
        of them hang.
        """
        vars(self._trainer._signal_connector)[_NOTIFIER] = self.receive

    def begin(self) -> None:
        """Replace the present handlers. Only the main thread can."""
        self.ends_without_others = False
        shared_work.is_called_off = self._is_interrupted
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if callable(signal.getsignal(number)):
                    self._handlers[number] = signal.signal(number, self.receive)

    def deliver(self) -> None:
        """Pass on the signal that waits here or on another process, if there is one and no step is under way.

        Processes that train together must call it together.
        """
        if not is_between_steps(self._trainer):
            return
        number = self._agreed() if self._together else self._waiting
        if number is None:
            return
        self._waiting = None
        if not self._together:
            self._handlers[number](number, None)
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            # What Lightning's handler notes. It would also wait for the other processes, wherever they are.
            self._trainer._signal_connector.received_sigterm = True
        if number == signal.SIGTERM and self._trainer.fit_loop.epoch_loop._num_ready_batches_reached():
            # Lightning would stop after the epoch's last batch, resume by counting the next epoch's batches on from
            # there, and cut them into other windows of accumulation. From here it resumes at the next epoch.
            raise SIGTERMException

    def _agreed(self) -> int | None:
        """Return the signal that any of the processes has received; of several, SIGTERM."""
        received = torch.tensor(self._waiting or 0, device=self._trainer.strategy.root_device)
        dist.all_reduce(received, dist.ReduceOp.MAX)
        return int(received) or None

    def end(self) -> None:
        """Restore the handlers."""
        shared_work.is_called_off = None
        vars(self._trainer._signal_connector).pop(_NOTIFIER, None)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self.receive:  # else another handler has replaced this one since
                signal.signal(number, handler)
        self._handlers = {}

    def _is_interrupted(self) -> bool:
        """Whether Ctrl-C waits, and a rollout or an evaluation that is about to begin need not."""
        return self._waiting == signal.SIGINT and is_between_steps(self._trainer)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal: note it, or pass it on if it need not wait."""
        if number != signal.SIGINT:
            # Lightning acts on SIGTERM only after a batch, which would be in the middle of the next step.
            self._waiting = number
            return
        # Ctrl-C ends a rollout or an evaluation at once. A second Ctrl-C also ends a step at once.
        is_second = self._waiting == signal.SIGINT
        is_interruptible = shared_work.is_under_way if self._together else self._can_be_saved()
        may_interrupt = is_interruptible and is_between_steps(self._trainer)
        if is_second or may_interrupt:
            self.ends_without_others = self._together and not shared_work.is_under_way
            self._handlers[number](number, frame)
        else:
            self._waiting = number

    def _can_be_saved(self) -> bool:
        """Whether a checkpoint can be saved here, if no step is under way.

        While held-out data is read, nothing can be saved. While a round is prepared, a checkpoint would hold a half of
        it.
        """
        data = getattr(self._trainer, "datamodule", None)
        is_preparing = getattr(data, "is_preparing", False)
        return self._trainer.training and not is_preparing


class KeepLast(Callback):
    """Saves ``last.ckpt`` and the folder ``last`` every ``every_n_steps`` steps, and when a run ends or is stopped.

    Ctrl-C and SIGTERM wait for the end of an optimizer step, so that a resumed run has the same weights as one that was
    never stopped. A second Ctrl-C ends it at once, with the last checkpoint that exists.

    Processes that train together end together, whichever of them gets the signal.
    """

    def __init__(self, every_n_steps: int = 1000) -> None:
        """Save after every ``every_n_steps`` optimizer steps.

        Raises:
            UserError: for a number below one.
        """
        check_range("[1, inf)", every_n_steps=every_n_steps)
        self.every_n_steps = every_n_steps
        self._saved = -1
        self._resumed_step = -1
        self._written = False  # whether a checkpoint is written and not yet published
        self._signals: _SignalsBetweenSteps | None = None
        self._children: list[Popen[bytes]] = []

    def setup(self, trainer: Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Note SIGTERM from now on, where several processes train together."""
        if stage == "fit" and trainer.global_step == 0:
            self._saved = -1  # the same object may have been used for another run
            self._resumed_step = -1
            self._written = False
        if stage == "fit" and trainer.world_size > 1:
            self._signals = _SignalsBetweenSteps(trainer)
            self._signals.replace_notifier()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note the step of ``last.ckpt``: until the next one, a new checkpoint would hold only a part of its state."""
        last = Path(trainer.default_root_dir) / "last.ckpt"
        if Path(str(trainer.ckpt_path)).resolve() == last.resolve():
            self._resumed_step = int(checkpoint["global_step"])

    def on_train_start(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Have signals wait for the end of a step."""
        if self._signals is None:
            self._signals = _SignalsBetweenSteps(trainer)
        self._signals.begin()

    def on_train_batch_end(self, trainer: Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """Write if it is time. The checkpoint is published later, after Lightning has logged this batch."""
        if trainer.global_step and trainer.global_step % self.every_n_steps == 0 and is_between_steps(trainer):
            self._write(trainer, pl_module)
        if self._signals is not None:
            self._signals.deliver()

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Publish the checkpoint that was written after the previous batch."""
        self._publish(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Publish the checkpoint that was written after the last batch, before a new round is played."""
        self._publish(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Save the last step."""
        self._write(trainer, pl_module)
        self._publish(trainer)
        self._end_signals()

    def on_fit_end(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        """Make sure that the folder of a run that had already ended exists and holds its last step."""
        root = Path(trainer.default_root_dir)
        began = trainer.ckpt_path
        if self._saved != -1 or not began:
            return
        assert isinstance(pl_module, LanguageModule)
        if Path(began).resolve() == (root / "last.ckpt").resolve():
            export_run_folder(trainer, pl_module, root / "last", None, full_state_dict(pl_module))
        elif Path(began).resolve() == (root / "best.ckpt").resolve():  # it was killed before it saved its last step
            save_run(trainer, pl_module, "last")

    def on_exception(self, trainer: Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Save a run that was asked to stop; after an error the last good checkpoint is worth more."""
        signals = self._signals
        self._end_signals()
        is_stopped = isinstance(exception, (KeyboardInterrupt, SIGTERMException))
        if trainer.world_size > 1:
            # Saving needs all processes, so one that ends without the others must not begin it.
            is_stopped = is_stopped and signals is not None and not signals.ends_without_others
        if is_stopped:
            self._release_children(trainer)
            is_new_step = trainer.global_step != self._resumed_step
            if is_new_step and trainer.training and is_between_steps(trainer):
                self._write(trainer, pl_module)
        self._publish(trainer)

    def wait_for_children(self) -> None:
        """Wait for the processes that this one has started and that end with it."""
        end = monotonic() + _PATIENCE
        for child in self._children:
            try:
                child.wait(max(0.0, end - monotonic()))
            except TimeoutExpired:
                child.kill()

    def _release_children(self, trainer: Trainer) -> None:
        """Let the processes that Lightning has started end by themselves: it would kill them, or this one with them."""
        launcher = trainer.strategy.launcher
        if isinstance(launcher, _SubprocessScriptLauncher):
            self._children += launcher.procs
            launcher.procs.clear()

    def _end_signals(self) -> None:
        if self._signals is not None:
            self._signals.end()
            self._signals = None

    def _write(self, trainer: Trainer, pl_module: L.LightningModule) -> None:
        if trainer.global_step != self._saved and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            assert isinstance(pl_module, LanguageModule)
            write_unpublished(trainer, pl_module, "last")
            self._saved = trainer.global_step
            self._written = True

    def _publish(self, trainer: Trainer) -> None:
        if self._written:
            self._written = False
            try:
                publish_checkpoint(trainer, "last")
            except BaseException:
                self._saved = -1  # what was written is gone: a run that is asked to stop writes it again
                raise
