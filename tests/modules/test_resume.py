"""A run that was killed and goes on is the run that was never killed: the same weights, bit by bit."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from lmrl.callbacks import KeepLast, RolloutCollection
from lmrl.modules import ILQL, PPO, LanguageModule, OnlineFilteredBC
from tests.helpers.killed import PLACES, STEPS, run
from tests.helpers.online import fit, rounds

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
    ours, theirs = one["OnlineDataModule"], other["OnlineDataModule"]
    assert (ours["round"], ours["consumed"]) == (theirs["round"], theirs["consumed"])
    for name, column in ours["played"]["columns"].items():
        assert torch.equal(column, theirs["played"]["columns"][name]), name


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    place: str, bc_run: str, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.helpers.killed", str(tmp_path), bc_run, place]
    ended = subprocess.run(command, capture_output=True, timeout=120, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
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


@pytest.mark.parametrize("kind", [OnlineFilteredBC, ILQL])
def test_replay_goes_on_too(kind: type[LanguageModule], bc_run: str, data_path: Path, tmp_path: Path) -> None:
    """Stopped in the middle of a round, and exactly at the end of one (of five minibatches, for ILQL)."""
    whole = go(kind, bc_run, data_path, tmp_path / "whole", STEPS)
    for stop in (3, 10):
        root = tmp_path / f"halves{stop}"
        go(kind, bc_run, data_path, root, stop)
        halves = go(kind, bc_run, data_path, root, STEPS, ckpt_path=root / "last.ckpt", weights_only=True)
        assert_same(halves, whole)
