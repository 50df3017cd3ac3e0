"""Guess My City."""

from typing import Any

from lmrl.datamodules.offline import OfflineDataModule

__all__ = ["GuessCityDataModule"]


class GuessCityDataModule(OfflineDataModule):
    """Games of ``guess_city``: one segment per game."""

    def __init__(self, task: str = "guess_city", **shared: Any) -> None:
        """Take the arguments of `OfflineDataModule`."""
        super().__init__(task, **shared)
