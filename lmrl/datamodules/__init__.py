"""LightningDataModules: recorded episodes in, batches of action tokens out."""

from lmrl.datamodules.offline import OfflineDataModule
from lmrl.datamodules.online import OnlineDataModule
from lmrl.datamodules.spec import BatchSpec, Filter
from lmrl.datamodules.tasks import (
    CarDealerDataModule,
    ChessDataModule,
    GuessCityDataModule,
    MazeDataModule,
    PartnerDataModule,
    TextNavDataModule,
    TwentyQuestionsDataModule,
    WordleDataModule,
)

__all__ = [
    "BatchSpec",
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
