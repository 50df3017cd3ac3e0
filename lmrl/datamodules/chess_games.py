"""Chess and its endgames."""

from typing import Any

from lmrl.datamodules.offline import OfflineDataModule

__all__ = ["ChessDataModule"]


class ChessDataModule(OfflineDataModule):
    """Games of ``chess`` or ``endgames``: one segment per move, the position before it."""

    def __init__(self, task: str = "chess", **shared: Any) -> None:
        """Choose the game; the other arguments are those of `OfflineDataModule`."""
        super().__init__(task, **shared)
