"""LightningDataModules: recorded episodes in, batches of action tokens out."""

from lmrl.datamodules.car_dealer import CarDealerDataModule
from lmrl.datamodules.chess_games import ChessDataModule
from lmrl.datamodules.filters import Filter
from lmrl.datamodules.guess_city import GuessCityDataModule
from lmrl.datamodules.maze import MazeDataModule
from lmrl.datamodules.offline import OfflineDataModule
from lmrl.datamodules.online import OnlineDataModule
from lmrl.datamodules.partner import PartnerDataModule
from lmrl.datamodules.text_nav import TextNavDataModule
from lmrl.datamodules.twenty_questions import TwentyQuestionsDataModule
from lmrl.datamodules.wordle import WordleDataModule

__all__ = [
    "CarDealerDataModule",
    "ChessDataModule",
    "Filter",
    "GuessCityDataModule",
    "MazeDataModule",
    "OfflineDataModule",
    "OnlineDataModule",
    "PartnerDataModule",
    "TextNavDataModule",
    "TwentyQuestionsDataModule",
    "WordleDataModule",
]
