"""A run that was killed and goes on is the run that was never killed: the same weights, bit by bit; the same means."""

import csv
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch import Callback

from lmrl.callbacks import KeepLast, RolloutCollection
from lmrl.modules import ILQL, PPO, LanguageModule, OnlineFilteredBC
from tests.helpers.killed import PLACES, STEPS, die_at, run
from tests.helpers.online import fit, rounds
from tests.helpers.ranks import fork_context

pytestmark = [
    pytest.mark.filterwarnings("ignore:round [0-9]+. "),
    pytest.mark.filterwarnings("ignore:Experiment logs directory"),
]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, bc_run: str) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("whole")
    run(root, bc_run, PPO, RolloutCollection(episodes=6, slots=4))
    return saved(root)


def saved(root: Path) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(root / "last.ckpt", weights_only=True)
    return checkpoint


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["global_step"] == other["global_step"] == STEPS
    for name, tensor in one["state_dict"].items():
        assert torch.equal(tensor, other["state_dict"][name]), name
    for left, right in zip(*(state["optimizer_states"][0]["state"].values() for state in (one, other)), strict=True):
        assert all(torch.equal(left[key], right[key]) for key in left)
    assert one["lmrl"]["action_tokens"] == other["lmrl"]["action_tokens"] > 0
    ours = one["OnlineDataModule"]
    theirs = other["OnlineDataModule"]
    assert (ours["round"], ours["consumed"]) == (theirs["round"], theirs["consumed"])
    for name, column in ours["played"]["columns"].items():
        assert torch.equal(column, theirs["played"]["columns"][name]), name


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=pytest.mark.nightly if place == "minibatch" else pytest.mark.slow) for place in PLACES],
)
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    place: str, bc_run: str, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    process = fork_context().Process(target=die_at, args=(place, tmp_path, bc_run))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    before = saved(tmp_path)
    assert 0 < before["global_step"] < STEPS
    playing = RolloutCollection(episodes=6, slots=4)
    run(tmp_path, bc_run, PPO, playing, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert_same(saved(tmp_path), uninterrupted)


def go(kind: type[LanguageModule], bc_run: str, data_path: Path, root: Path, steps: int, **more: Any) -> dict[str, Any]:
    """A run on a growing replay buffer, at a constant rate: a cosine would know how long it was meant to be."""
    torch.manual_seed(len(more))  # heads begin at random, and nothing may depend on it where a run goes on
    shared = {"pretrained": bc_run, "lr": 1e-2, "lr_schedule": "constant", "warmup_steps": 0}
    module = kind(**shared, **({"polyak": 0.5} if kind is ILQL else {"top_fraction": 0.5}))
    settings = {"offline": True, "path": str(data_path), "batches": 5} if kind is ILQL else {"epochs": 2}
    fit(module, rounds(keep_replay=True, **settings), root, steps, [KeepLast()], **more)
    return saved(root)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OnlineFilteredBC, pytest.param(ILQL, marks=pytest.mark.nightly)])
def test_replay_goes_on_too(kind: type[LanguageModule], bc_run: str, data_path: Path, tmp_path: Path) -> None:
    """Stopped in the middle of a round, and exactly at the end of one (of five minibatches, for ILQL)."""
    whole = go(kind, bc_run, data_path, tmp_path / "whole", STEPS)
    for stop in (3, 10):
        root = tmp_path / f"halves{stop}"
        go(kind, bc_run, data_path, root, stop)
        halves = go(kind, bc_run, data_path, root, STEPS, ckpt_path=root / "last.ckpt", weights_only=True)
        assert_same(halves, whole)


MEANS_STEPS = 6  # two rounds of three


class Copying(Callback):
    """Keeps the checkpoint of the fourth step: one into the second round."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        root = Path(trainer.default_root_dir)
        if trainer.global_step == 5 and (root / "last.ckpt").exists():
            shutil.copy(root / "last.ckpt", root / "fourth.ckpt")


def learn_rounds(root: Path, bc_run: str, **more: Any) -> None:
    torch.manual_seed(0)
    module = PPO(pretrained=bc_run, lr=1e-2)
    fit(module, rounds(batches=3), root, MEANS_STEPS, [KeepLast(every_n_steps=2), Copying()], **more)


def means(root: Path) -> list[dict[str, str]]:
    """Rows of what is logged once in a round, without times; ``step`` of each."""
    with (root / "metrics.csv").open(newline="") as file:
        return [
            {k: v for k, v in row.items() if v and k != "epoch"}
            for row in csv.DictReader(file)
            if row["ppo/policy_loss"]
        ]


def test_means_of_a_round_go_on_in_its_middle(bc_run: str, tmp_path: Path) -> None:
    learn_rounds(tmp_path / "whole", bc_run)
    fourth = tmp_path / "whole" / "fourth.ckpt"
    assert torch.load(fourth, weights_only=True)["global_step"] == 4
    learn_rounds(tmp_path / "again", bc_run, ckpt_path=fourth, weights_only=True)
    first, second = means(tmp_path / "whole")
    assert means(tmp_path / "again") == [second] and first != second


class Interrupted(PPO):
    """Presses Ctrl-C when its critic has learned from a round of this number."""

    at = 0

    def process(self, rollout: Any) -> dict[str, float]:
        metrics = super().process(rollout)
        if self.trainer.datamodule.round + 1 == self.at:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGINT)
        return metrics


def test_ctrl_c_while_a_round_is_prepared_waits_for_the_next_step(
    bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(root: Path, **more: Any) -> dict[str, Any]:
        torch.manual_seed(0)
        module = Interrupted(pretrained=bc_run, lr=1e-2, lr_schedule="constant")
        fit(module, rounds(batches=3), root, STEPS, [KeepLast()], **more)
        return saved(root)

    whole = trained(tmp_path / "whole")
    monkeypatch.setattr(Interrupted, "at", 3)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trained(tmp_path / "again")
    monkeypatch.setattr(Interrupted, "at", 0)
    again = trained(tmp_path / "again", ckpt_path=tmp_path / "again" / "last.ckpt", weights_only=True)
    assert_same(again, whole)


def test_a_run_that_has_ended_plays_no_round(bc_run: str, tmp_path: Path) -> None:
    learn_rounds(tmp_path, bc_run)
    learn_rounds(tmp_path, bc_run, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert not (tmp_path / "metrics.csv").exists()  # nothing was logged, where Lightning begins a new file


class KeepsCopies(Callback):
    """Copies each last.ckpt as ``STEP.ckpt`` when the next batch begins."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        root = Path(trainer.default_root_dir)
        if (root / "last.ckpt").is_file():
            shutil.copy(root / "last.ckpt", root / f"{saved(root)['global_step']}.ckpt")


@pytest.mark.parametrize("step", [3, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_run_that_was_killed_between_rounds_keeps_its_windows(step: int, bc_run: str, tmp_path: Path) -> None:
    """A round of five micro-batches and windows of two: the windows are 2, 2 and 1, so the third step ends a round."""

    def trained(name: str, **more: Any) -> dict[str, Any]:
        module = PPO(pretrained=bc_run, lr=1e-3, lr_schedule="constant", warmup_steps=0, critic="shared")
        callbacks = [KeepLast(every_n_steps=1), KeepsCopies()]
        playing = RolloutCollection(episodes=6, slots=4)
        data = rounds(batch_size=6)
        fit(module, data, tmp_path / name, 6, callbacks, playing, {"accumulate_grad_batches": 2}, **more)
        return saved(tmp_path / name)

    whole = trained("whole")
    assert torch.load(tmp_path / "whole" / "3.ckpt", weights_only=True)["OnlineDataModule"]["consumed"] == 5
    resumed = trained("resumed", ckpt_path=tmp_path / "whole" / f"{step}.ckpt", weights_only=True)
    for name, tensor in whole["state_dict"].items():
        assert torch.equal(tensor, resumed["state_dict"][name]), name
    assert whole["OnlineDataModule"]["round"] == resumed["OnlineDataModule"]["round"]
