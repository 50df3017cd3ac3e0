"""LightningDataModules: recorded episodes in, batches of action tokens out."""

from lmrl.datamodules.chess_games import ChessDataModule
from lmrl.datamodules.filters import Filter
from lmrl.datamodules.maze import MazeDataModule
from lmrl.datamodules.offline import OfflineDataModule
from lmrl.datamodules.text_nav import TextNavDataModule
from lmrl.datamodules.wordle import WordleDataModule

__all__ = [
    "ChessDataModule",
    "Filter",
    "MazeDataModule",
    "OfflineDataModule",
    "TextNavDataModule",
    "WordleDataModule",
]
