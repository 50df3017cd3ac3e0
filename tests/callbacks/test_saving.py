"""What `KeepLast` keeps beside weights: means over a round that has begun, and no round of a run that has ended."""

import csv
import shutil
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch import Callback

from lmrl.callbacks import KeepLast
from lmrl.modules import PPO
from tests.helpers.online import fit, rounds

pytestmark = pytest.mark.filterwarnings("ignore:Experiment logs directory", "ignore:round ")
STEPS = 6  # two rounds of three


class Copying(Callback):
    """Keeps the checkpoint of the fourth step: one into the second round."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        root = Path(trainer.default_root_dir)
        if trainer.global_step == 5 and (root / "last.ckpt").exists():
            shutil.copy(root / "last.ckpt", root / "fourth.ckpt")


def learn(root: Path, bc_run: str, **more: Any) -> None:
    torch.manual_seed(0)
    module = PPO(pretrained=bc_run, lr=1e-2)
    fit(module, rounds(batches=3), root, STEPS, [KeepLast(every_n_steps=2), Copying()], **more)


def means(root: Path) -> list[dict[str, str]]:
    """Rows of what is logged once in a round, without times; ``step`` of each."""
    with (root / "metrics.csv").open(newline="") as file:
        return [
            {k: v for k, v in row.items() if v and k != "epoch"}
            for row in csv.DictReader(file)
            if row["ppo/policy_loss"]
        ]


def test_means_of_a_round_go_on_in_its_middle(bc_run: str, tmp_path: Path) -> None:
    learn(tmp_path / "whole", bc_run)
    fourth = tmp_path / "whole" / "fourth.ckpt"
    assert torch.load(fourth, weights_only=True)["global_step"] == 4
    learn(tmp_path / "again", bc_run, ckpt_path=fourth, weights_only=True)
    first, second = means(tmp_path / "whole")
    assert means(tmp_path / "again") == [second] and first != second


def test_a_run_that_has_ended_plays_no_round(bc_run: str, tmp_path: Path) -> None:
    learn(tmp_path, bc_run)
    learn(tmp_path, bc_run, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert not (tmp_path / "metrics.csv").exists()  # nothing was logged, where Lightning begins a new file
