"""Car Dealer."""

from typing import Any

from lmrl.datamodules.offline import OfflineDataModule

__all__ = ["CarDealerDataModule"]


class CarDealerDataModule(OfflineDataModule):
    """Conversations of ``car_dealer``: one segment each."""

    def __init__(self, task: str = "car_dealer", **shared: Any) -> None:
        """Take the arguments of `OfflineDataModule`."""
        super().__init__(task, **shared)
