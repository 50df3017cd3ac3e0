"""Filtered behavioural cloning (%BC), offline and online."""

from typing import Any

from lmrl.datamodules.filters import Filter
from lmrl.errors import UserError
from lmrl.modules.bc import BC

__all__ = ["FilteredBC", "OnlineFilteredBC"]


class FilteredBC(BC):
    """BC that tells its datamodule which episodes to keep."""

    name = "filtered_bc"

    def __init__(
        self, success: bool = False, top_fraction: float | None = None, min_return: float | None = None, **shared: Any
    ) -> None:
        """Set what is kept; the arguments are those of `Filter`, the rest are those of `BC`."""
        super().__init__(**shared)
        self.filter = Filter(success=success, top_fraction=top_fraction, min_return=min_return)

    def setup(self, stage: str) -> None:
        """Hand the filter to the datamodule."""
        super().setup(stage)
        self.ask(filter=self.filter)


class OnlineFilteredBC(FilteredBC):
    """BC on the best of what the policy plays itself: of this round, or, with ``data.init_args.history``, of all."""

    name = "online_filtered_bc"
    starts_from_bc = True

    def setup(self, stage: str) -> None:
        """Hand the filter to the datamodule.

        Raises:
            UserError: if the datamodule does not play rounds.
        """
        super().setup(stage)
        if not hasattr(getattr(self.trainer, "datamodule", None), "collect"):
            raise UserError("OnlineFilteredBC learns from what it plays: use lmrl.datamodules.OnlineDataModule")
