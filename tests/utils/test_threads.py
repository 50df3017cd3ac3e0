"""Tests of the number of threads that commands compute with."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from lmrl.cli import main
from lmrl.utils import threads
from lmrl.utils.threads import SHARE, threads_for


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process with two threads whose user has not chosen a number."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_small_model_computes_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    small = nn.Linear(10, 10)
    with threads_for(small):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with threads_for(nn.LazyLinear(10)):
        assert torch.get_num_threads() == 1
    with threads_for(None):
        assert torch.get_num_threads() == 2
    monkeypatch.setattr(threads, "_MAX_PARAMETERS", 100)
    with threads_for(small):
        assert torch.get_num_threads() == 2, "it has 110 parameters"


@pytest.mark.usefixtures("two_threads")
def test_the_user_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with threads_for(nn.Linear(1, 1)):
        assert torch.get_num_threads() == 2
    monkeypatch.setenv(SHARE, "2")
    with threads_for(nn.Linear(1, 1)):
        assert torch.get_num_threads() == 1, "the share of the cores that reproduce gives is no choice of the user's"


@pytest.mark.usefixtures("two_threads")
def test_commands_use_it(data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    plain = torch.set_num_threads

    def note(count: int) -> None:
        seen.append(count)
        plain(count)

    monkeypatch.setattr(torch, "set_num_threads", note)
    words = [f"--data.init_args.path={data_path}", "--trainer.max_steps=1", f"--trainer.default_root_dir={tmp_path}"]
    assert main(["fit", "--config", "configs/maze_fo/bc.yaml", "--evaluation.episodes=1", *words]) == 0
    assert seen == [1, 2]
    assert main(["evaluate", "--policy", str(tmp_path), "--episodes", "1", "--env", "max_steps=2"]) == 0
    assert seen == [1, 2, 1, 2]
    words = ["--temperatures", "1", "--episodes", "1", "--env", "max_steps=2"]
    assert main(["tune", str(tmp_path), *words]) == 0
    assert seen == [1, 2, 1, 2, 1, 2]
