"""A killed run on recorded data resumes as if it had not been killed: the same weights, bit by bit."""

import multiprocessing
import os
import shutil
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from lmrl.callbacks import KeepLast
from lmrl.data.storage import read_episodes, write_episodes
from lmrl.datamodules import MazeDataModule
from lmrl.errors import UserError
from lmrl.modules import AWR, BC, ILQL, QSFT, LanguageModule, ReturnConditionedBC
from tests.helpers.online import trainer
from tests.helpers.ranks import on_ranks, strategy

LORA = {"r": 2, "lora_alpha": 8}
BATCHES, STEPS = 4, 10  # per epoch; in all

pytestmark = pytest.mark.filterwarnings("ignore:Experiment logs directory")


class Killed(Callback):
    """A callback that ends its own process, as a crash of the machine or a preemption would."""

    def __init__(self, step: int, how: signal.Signals = signal.SIGKILL) -> None:
        self.step = step
        self.how = how

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            os.kill(os.getpid(), self.how)


def learn(
    kind: type[LanguageModule],
    bc_run: str,
    data: dict[str, Any],
    root: Path,
    steps: int,
    *callbacks: Callback,
    world: int = 1,
    **more: Any,
) -> None:
    """Run `steps` steps, from the checkpoint in the folder if there is one."""
    last = root / "last.ckpt"
    torch.manual_seed(last.is_file())  # a resumed run must not depend on the seed
    module = kind(pretrained=bc_run, lr=1e-2, lr_schedule="constant", warmup_steps=0, **more)
    go = {"ckpt_path": last, "weights_only": True} if last.is_file() else {}
    settings = {"limit_val_batches": 1, "devices": world, "strategy": strategy("ddp" if world > 1 else "one")}
    run = trainer(root, steps, [KeepLast(every_n_steps=6), *callbacks], **settings)
    run.fit(module, MazeDataModule("maze_fo", batch_size=200 // world, **data), **go)
    assert run.num_training_batches == BATCHES


def assert_same(root: Path, whole: Path) -> None:
    one, other = (torch.load(folder / "last.ckpt", weights_only=True) for folder in (root, whole))
    assert one["global_step"] == other["global_step"] == STEPS
    assert one["state_dict"].keys() == other["state_dict"].keys()
    for name, tensor in one["state_dict"].items():
        assert torch.equal(tensor, other["state_dict"][name]), name
    for left, right in zip(*(state["optimizer_states"][0]["state"].values() for state in (one, other)), strict=True):
        assert all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize(
    ("kind", "more", "data"),
    [
        (BC, {}, {}),
        pytest.param(BC, {"lora": LORA}, {}, marks=pytest.mark.nightly),
        pytest.param(BC, {"lora": {**LORA, "lora_dropout": 0.2}}, {}, marks=pytest.mark.slow),
        pytest.param(ILQL, {"lora": LORA, "polyak": 0.5}, {}, marks=pytest.mark.slow),
        pytest.param(AWR, {}, {}, marks=pytest.mark.nightly),
        pytest.param(QSFT, {"bc_weight": 1.0, "polyak": 0.5}, {}, marks=pytest.mark.nightly),
        pytest.param(ReturnConditionedBC, {"bins": 3}, {}, marks=pytest.mark.nightly),
    ],
    ids=["bc", "adapters", "dropout", "ilql", "awr", "qsft", "return_conditioned"],
)
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    kind: type[LanguageModule], more: dict[str, Any], data: dict[str, Any], bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    """One run is killed in the middle of the second epoch, another stops exactly at the end of the first and second."""
    arguments = (kind, bc_run, {"path": str(data_path), **data})
    learn(*arguments, tmp_path / "whole", STEPS, **more)
    killed = multiprocessing.get_context("fork").Process(
        target=learn, args=(*arguments, tmp_path / "killed", STEPS, Killed(7)), kwargs=more
    )
    killed.start()
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    assert torch.load(tmp_path / "killed" / "last.ckpt", weights_only=True)["global_step"] == 6
    learn(*arguments, tmp_path / "killed", STEPS, **more)
    assert_same(tmp_path / "killed", tmp_path / "whole")
    for stop in (BATCHES, 2 * BATCHES, STEPS):
        learn(*arguments, tmp_path / "stopped", stop, **more)
    assert_same(tmp_path / "stopped", tmp_path / "whole")


def learn_by_epochs(
    bc_run: str, data_path: Path, root: Path, limits: dict[str, Any], *callbacks: Callback, every: int = 6
) -> None:
    """Run three epochs, from the checkpoint in the folder if there is one."""
    last = root / "last.ckpt"
    go = {"ckpt_path": last, "weights_only": True} if last.is_file() else {}
    torch.manual_seed(last.is_file())
    module = BC(pretrained=bc_run, lr=1e-2, lr_schedule="constant", warmup_steps=0)
    run = trainer(root, -1, [KeepLast(every_n_steps=every), *callbacks], limit_val_batches=0, **limits)
    run.fit(module, MazeDataModule("maze_fo", batch_size=200, path=str(data_path)), **go)


class StopsAfter(Callback):
    """Ends a run that has no other end."""

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        trainer.should_stop = trainer.global_step >= STEPS


@pytest.mark.parametrize("every", [6, BATCHES], ids=["middle", "end"])  # of an epoch
@pytest.mark.parametrize("limits", [{"max_epochs": 3}, {"max_epochs": -1}], ids=["epochs", "endless"])
def test_a_run_without_a_number_of_steps_goes_on_bit_by_bit(
    limits: dict[str, int], every: int, bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    learn_by_epochs(bc_run, data_path, tmp_path / "whole", limits, StopsAfter(), every=every)
    killed = multiprocessing.get_context("fork").Process(
        target=learn_by_epochs,
        args=(bc_run, data_path, tmp_path / "killed", limits, Killed(every + 1)),
        kwargs={"every": every},
    )
    killed.start()
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    learn_by_epochs(bc_run, data_path, tmp_path / "killed", limits, StopsAfter(), every=every)
    assert_same(tmp_path / "killed", tmp_path / "whole")


def test_a_run_whose_batches_others_prepare_goes_on_bit_by_bit(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    """Two processes prepare the batches. They have prepared more than the run has used when it stops."""
    arguments = (BC, bc_run, {"path": str(data_path), "num_workers": 2})
    learn(*arguments, tmp_path / "whole", STEPS)
    for stop in (BATCHES + 1, STEPS):
        learn(*arguments, tmp_path / "halves", stop)
    assert_same(tmp_path / "halves", tmp_path / "whole")


def test_a_terminated_run_is_kept_where_it_ended(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    arguments = (BC, bc_run, {"path": str(data_path)})
    learn(*arguments, tmp_path / "whole", STEPS)
    with pytest.raises(SIGTERMException):
        learn(*arguments, tmp_path / "told", STEPS, Killed(7, signal.SIGTERM))
    assert torch.load(tmp_path / "told" / "last.ckpt", weights_only=True)["global_step"] == 8
    learn(*arguments, tmp_path / "told", STEPS)
    assert_same(tmp_path / "told", tmp_path / "whole")


def test_a_run_is_not_resumed_with_other_data_or_settings(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.parquet"
    shutil.copy(data_path, data)

    def run(steps: int, batch_size: int = 200, lr: float = 1e-2) -> None:
        last = tmp_path / "run" / "last.ckpt"
        go = {"ckpt_path": last, "weights_only": True} if last.is_file() else {}
        module = BC(pretrained=bc_run, lr=lr)
        one = trainer(tmp_path / "run", steps, [KeepLast()])
        one.fit(module, MazeDataModule("maze_fo", batch_size=batch_size, path=str(data)), **go)

    run(1)
    with pytest.raises(UserError, match=r"another batch_size \(200, now 100\): resume it as it was"):
        run(2, batch_size=100)
    with pytest.raises(UserError, match=r"another lr \(0\.01, now 1\.0\)"):
        run(2, lr=1.0)
    run(2)
    write_episodes(data, list(read_episodes(data))[:400])
    with pytest.raises(UserError, match="another data_hash"):
        run(3)


class Stopped(Callback):
    """A callback that signals its own process in the middle of a micro-batch, or asks the trainer to stop after it."""

    def __init__(self, batch: int, how: signal.Signals | None) -> None:
        self.batch = batch
        self.how = how
        self.seen = 0

    def on_after_backward(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seen += 1
        if self.seen == self.batch and self.how is not None:
            os.kill(os.getpid(), self.how)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if self.seen == self.batch and self.how is None:
            trainer.should_stop = True  # as trainer.max_time does


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), None])
@pytest.mark.parametrize(
    "stops", [(1, 3, 7), pytest.param(range(1, 14), marks=pytest.mark.nightly)], ids=["some batches", "all batches"]
)
def test_a_run_that_is_stopped_in_an_accumulation_window_goes_on_bit_by_bit(
    stops: Sequence[int], how: signal.Signals | None, bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    """An epoch has seven micro-batches, and a step has three, so the windows are 3, 3 and 1."""

    def run(root: Path, *callbacks: Callback) -> None:
        last = root / "last.ckpt"
        torch.manual_seed(last.is_file())
        module = BC(pretrained=bc_run, lr=1e-2, lr_schedule="cosine", warmup_steps=2)
        go = {"ckpt_path": last, "weights_only": True} if last.is_file() else {}
        one = trainer(root, 6, [KeepLast(every_n_steps=4), *callbacks], accumulate_grad_batches=3)
        one.fit(module, MazeDataModule("maze_fo", batch_size=100, path=str(data_path)), **go)
        assert one.num_training_batches == 7

    run(tmp_path / "whole")
    whole = torch.load(tmp_path / "whole" / "last.ckpt", weights_only=True)
    assert whole["global_step"] == 6
    for batch in stops:
        root = tmp_path / f"stopped{batch}"
        if how is None:
            run(root, Stopped(batch, how))
        else:
            before = signal.getsignal(how)
            with pytest.raises(SystemExit):  # Lightning raises it after Ctrl-C, and its SIGTERMException is one
                run(root, Stopped(batch, how))
            assert signal.getsignal(how) == before
        assert 1 <= torch.load(root / "last.ckpt", weights_only=True)["global_step"] < 6
        run(root)
        again = torch.load(root / "last.ckpt", weights_only=True)
        assert again["global_step"] == 6
        for name, tensor in whole["state_dict"].items():
            assert torch.equal(tensor, again["state_dict"][name]), (batch, name)


def test_a_run_that_ended_with_an_epoch_goes_on_bit_by_bit(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    """An epoch has seven micro-batches and three steps. The next epoch begins with a window of its own."""

    def run(root: Path, steps: int) -> None:
        last = root / "last.ckpt"
        torch.manual_seed(last.is_file())
        module = BC(pretrained=bc_run, lr=1e-2, lr_schedule="constant", warmup_steps=0)
        go = {"ckpt_path": last, "weights_only": True} if last.is_file() else {}
        one = trainer(root, steps, [KeepLast()], accumulate_grad_batches=3)
        one.fit(module, MazeDataModule("maze_fo", batch_size=100, path=str(data_path)), **go)

    run(tmp_path / "whole", 6)
    run(tmp_path / "parts", 3)
    run(tmp_path / "parts", 6)
    whole, parts = (torch.load(tmp_path / name / "last.ckpt", weights_only=True) for name in ("whole", "parts"))
    assert whole["global_step"] == parts["global_step"] == 6
    for name, tensor in whole["state_dict"].items():
        assert torch.equal(tensor, parts["state_dict"][name]), name


def test_a_module_that_was_stopped_can_be_trained_again(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    module = BC(pretrained=bc_run, lr=1e-2, lr_schedule="constant", warmup_steps=0)
    for name, callbacks, steps in (("stopped", [Stopped(1, None)], 1), ("again", [], 3)):
        one = trainer(tmp_path / name, 3, callbacks)
        one.fit(module, MazeDataModule("maze_fo", batch_size=100, path=str(data_path)))
        assert one.global_step == steps


def together(bc_run: str, data_path: Path, root: Path, steps: int, **more: Any) -> None:
    learn(BC, bc_run, {"path": str(data_path)}, root, steps, world=2, **more)


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"lora": {**LORA, "lora_dropout": 0.2}}], ids=["bc", "dropout"])
def test_so_do_two_processes(more: dict[str, Any], bc_run: str, data_path: Path, tmp_path: Path) -> None:
    run = partial(on_ranks, partial(together, **more), bc_run, data_path)
    run(tmp_path / "whole", STEPS)
    for stop in (BATCHES + 1, 2 * BATCHES, STEPS):
        run(tmp_path / "stopped", stop)
    assert_same(tmp_path / "stopped", tmp_path / "whole")
    with pytest.raises(UserError, match=r"another number of processes \(2, now 1\)"):
        learn(BC, bc_run, {"path": str(data_path)}, tmp_path / "stopped", STEPS + 1, **more)


class Validating(Callback):
    """Presses Ctrl-C while held-out data is read."""

    def on_validation_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == BATCHES - 1:  # an epoch without what is held out
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_while_held_out_data_is_read_waits_until_it_can_be_saved(
    bc_run: str, data_path: Path, tmp_path: Path
) -> None:
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        learn(BC, bc_run, {"path": str(data_path), "val_fraction": 0.1}, tmp_path, STEPS, Validating())
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == BATCHES


class WithEpochs(BC):
    """BC with a schedule of one's own, which follows epochs as Lightning does by default."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def test_a_schedule_of_epochs_does_not_stop_saving(bc_run: str, data_path: Path, tmp_path: Path) -> None:
    killed = multiprocessing.get_context("fork").Process(
        target=learn, args=(WithEpochs, bc_run, {"path": str(data_path)}, tmp_path, STEPS, Killed(7))
    )
    killed.start()
    killed.join(120)
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 6
