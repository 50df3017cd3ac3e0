"""Wordle."""

from typing import Any

from lmrl.datamodules.offline import OfflineDataModule

__all__ = ["WordleDataModule"]


class WordleDataModule(OfflineDataModule):
    """Games of ``wordle``: one segment per game."""

    def __init__(self, task: str = "wordle", **shared: Any) -> None:
        """Take the arguments of `OfflineDataModule`."""
        super().__init__(task, **shared)
