"""The two mazes."""

from typing import Any

from lmrl.datamodules.offline import OfflineDataModule

__all__ = ["MazeDataModule"]


class MazeDataModule(OfflineDataModule):
    """Episodes of ``maze_fo`` (one segment per turn: the last observation) or ``maze_po`` (the last 40 texts)."""

    def __init__(self, task: str = "maze_fo", **shared: Any) -> None:
        """Choose the maze; the other arguments are those of `OfflineDataModule`."""
        super().__init__(task, **shared)
