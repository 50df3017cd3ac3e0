"""The house, fully and partially observed."""

from typing import Any

from lmrl.datamodules.offline import OfflineDataModule

__all__ = ["TextNavDataModule"]


class TextNavDataModule(OfflineDataModule):
    """Episodes of ``text_nav_fo`` (one segment per turn: the last observation) or ``text_nav_po`` (one per episode)."""

    def __init__(self, task: str = "text_nav_fo", **shared: Any) -> None:
        """Choose the house; the other arguments are those of `OfflineDataModule`."""
        super().__init__(task, **shared)
