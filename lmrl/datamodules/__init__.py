"""LightningDataModules: recorded episodes in, batches of action tokens out."""

from lmrl.datamodules.filters import Filter
from lmrl.datamodules.maze import MazeDataModule
from lmrl.datamodules.offline import OfflineDataModule

__all__ = ["Filter", "MazeDataModule", "OfflineDataModule"]
