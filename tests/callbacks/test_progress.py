"""What is seen of a training: lines where the output is no terminal, a bar where it is one."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch import Callback

from lmrl.callbacks import TrainingProgress
from lmrl.callbacks import progress as progress_module
from lmrl.training.reporting import log_now


class Line(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        self.log("train/loss", torch.tensor(0.25 * (self.global_step + 1)))
        return self.layer(batch).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(4, 1), batch_size=1)


class Evaluation(Callback):
    """Has a return at the third step."""

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == 3:
            log_now(trainer, {"eval/maze_fo/return_mean": -12.5})


def fit(root: Path, steps: int, epochs: int = -1, **more: Any) -> TrainingProgress:
    shown = TrainingProgress(seconds=1e9)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    callbacks: list[Callback] = [Evaluation(), shown]
    trainer = L.Trainer(
        accelerator="cpu", max_steps=steps, max_epochs=epochs, callbacks=callbacks, default_root_dir=root, **quiet
    )
    trainer.fit(Line(), **more)
    trainer.save_checkpoint(root / "last.ckpt")
    return shown


@pytest.mark.parametrize(("steps", "epochs", "total"), [(6, -1, 6), (6, 1, 4), (-1, 2, 8)])
def test_lines_name_step_loss_and_return(
    steps: int,
    epochs: int,
    total: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress_module, "_REFRESH", 0.0)
    fit(tmp_path, steps, epochs)
    said = [line.rpartition(" steps/s")[0].rpartition(", ")[0] for line in capsys.readouterr().err.splitlines()]
    told = [line for line in said if line.startswith("step ")]
    assert told == [
        f"step 3/{total}, loss 0.75, return -12.50",
        f"step {total}/{total}, loss {total / 4:g}, return -12.50",
    ]


class LoggedAgain(Evaluation):
    """Logs the loss of the last step again when the training ends."""

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        log_now(trainer, {"train/loss": 9.0})


def test_the_last_step_has_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "_REFRESH", 0.0)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    callbacks: list[Callback] = [LoggedAgain(), TrainingProgress()]
    trainer = L.Trainer(accelerator="cpu", max_steps=3, callbacks=callbacks, default_root_dir=tmp_path, **quiet)
    trainer.fit(Line())
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step ")]
    assert line.startswith("step 3/3, loss 0.75, return -12.50")


class Clock(Callback):
    """A step takes a second; an evaluation at the third step and each validation take a hundred."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        monkeypatch.setattr(progress_module, "monotonic", lambda: self.now)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self.now += 1.0
        if trainer.global_step == 3:
            with progress_module.while_evaluating(trainer, "playing"):
                self.now += 100.0

    def on_validation_epoch_start(self, *args: Any) -> None:
        self.now += 100.0


class Validated(Line):
    def validation_step(self, batch: torch.Tensor, index: int) -> None:
        pass

    def val_dataloader(self) -> Any:
        return self.train_dataloader()


def test_evaluations_do_not_slow_the_steps_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = TrainingProgress(seconds=1e9)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = L.Trainer(
        accelerator="cpu", max_epochs=2, callbacks=[Clock(monkeypatch), shown], default_root_dir=tmp_path, **quiet
    )
    trainer.fit(Validated())
    assert capsys.readouterr().err.splitlines()[-1] == "step 8/8, loss 2, 1 steps/s"


class Saying(Callback):
    """Says how far it is, a second after a line and half a minute after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1.0
        monkeypatch.setattr(progress_module, "monotonic", lambda: self.now)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self.now += 1.0
        progress_module.say(trainer, "1 ended")
        self.now += 30.0
        progress_module.say(trainer, "2 ended")


def test_a_log_file_shows_how_far_a_long_evaluation_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    callbacks = [TrainingProgress(), Saying(monkeypatch)]
    trainer = L.Trainer(accelerator="cpu", max_steps=1, callbacks=callbacks, default_root_dir=tmp_path, **quiet)
    trainer.fit(Line())
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.endswith("ended")] == ["2 ended"]


def test_a_run_that_goes_on_counts_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(tmp_path, 4).started
    fit(tmp_path, 6, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert "step 6/6, loss 1.5" in capsys.readouterr().err.splitlines()[-1]
    assert not fit(tmp_path, 6, ckpt_path=tmp_path / "last.ckpt", weights_only=True).started


def test_a_terminal_sees_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = progress_module.Console(force_terminal=True, record=True, width=80, file=(tmp_path / "tty").open("w"))
    monkeypatch.setattr(progress_module, "Console", lambda stderr: console)
    fit(tmp_path, 6)
    frames = console.export_text().rstrip().split("step ")
    assert frames[-1].startswith("6/6 ━")
    assert "loss 1.5, return -12.50" in frames[-1]
    assert len(f"step {frames[-1]}") <= 80


class Interrupted(Line):
    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        raise ValueError("in a step")


def test_a_failure_leaves_the_terminal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = progress_module.Console(force_terminal=True, width=80, file=(tmp_path / "tty").open("w"))
    monkeypatch.setattr(progress_module, "Console", lambda stderr: console)
    shown = TrainingProgress()
    trainer = L.Trainer(accelerator="cpu", max_steps=2, callbacks=[shown], default_root_dir=tmp_path, logger=False)
    with pytest.raises(ValueError, match="in a step"):
        trainer.fit(Interrupted())
    assert console._live_stack == []
