"""Little of what is read is padding, on any task, although episodes of all lengths meet in a batch."""

from pathlib import Path

import pytest

import lmrl
from benchmarks.padding import padding


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.mark.parametrize("task", lmrl.tasks())
def test_less_than_a_tenth_is_padding(task: str, folder: Path) -> None:
    """With the settings of the shipped configuration, but for fewer episodes."""
    share = padding(task, folder, episodes=40 if task == "chess" else 160)
    assert 0.0 <= share < 0.10
