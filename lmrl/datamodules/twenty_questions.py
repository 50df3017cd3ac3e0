"""Twenty Questions, recorded."""

from typing import Any

from lmrl.datamodules.offline import OfflineDataModule

__all__ = ["TwentyQuestionsDataModule"]


class TwentyQuestionsDataModule(OfflineDataModule):
    """Dialogues of ``twenty_questions``: one segment per dialogue."""

    def __init__(self, task: str = "twenty_questions", **shared: Any) -> None:
        """Take the arguments of `OfflineDataModule`."""
        super().__init__(task, **shared)
