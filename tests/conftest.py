"""A short BC run in the maze, which tests of online learning start from, and players that know the maze."""

from pathlib import Path

import pytest
import torch

from lmrl.callbacks import KeepLast
from lmrl.data import generate
from lmrl.datamodules import MazeDataModule
from lmrl.modules import BC
from tests.helpers.mazes import player, run_of, seer
from tests.helpers.online import TINY, trainer

__all__ = ["bc_run", "data_path", "player", "run_of", "seer"]


@pytest.fixture(scope="module")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("maze_fo", 30, 0, tmp_path_factory.mktemp("data") / "maze.parquet", progress=False)


@pytest.fixture(scope="module")
def bc_run(tmp_path_factory: pytest.TempPathFactory, data_path: Path) -> str:
    root = tmp_path_factory.mktemp("runs") / "maze_fo" / "bc"
    torch.manual_seed(0)
    trainer(root, 5, [KeepLast()]).fit(BC(architecture=TINY), MazeDataModule("maze_fo", path=str(data_path)))
    return str(root)
