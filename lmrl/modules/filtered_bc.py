"""Filtered behavioural cloning (%BC), offline and online."""

from dataclasses import replace
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from lmrl.datamodules.online import online_datamodule
from lmrl.datamodules.spec import BatchSpec, Filter
from lmrl.modules.bc import BC

__all__ = ["FilteredBC", "OnlineFilteredBC"]


class FilteredBC(BC):
    """BC on some of the episodes."""

    name = "filtered_bc"

    def __init__(
        self, success: bool = False, top_fraction: float | None = None, min_return: float | None = None, **shared: Any
    ) -> None:
        """Build the model; the arguments are those of `lmrl.datamodules.spec.Filter` and of `BC`."""
        super().__init__(**shared)
        self.filter = Filter(success=success, top_fraction=top_fraction, min_return=min_return)

    def setup(self, stage: str) -> None:
        """See `LanguageModule.setup`; warns if the filter has no condition."""
        super().setup(stage)
        if stage == "fit" and self.filter == Filter():
            rank_zero_warn(
                f"{type(self).__name__} keeps all episodes, as BC does: set success, min_return or top_fraction"
            )

    def batch_spec(self) -> BatchSpec:
        """Declare batches of the episodes that the filter keeps."""
        return replace(super().batch_spec(), filter=self.filter)


class OnlineFilteredBC(FilteredBC):
    """BC on the best episodes of the current round, or, with ``data.init_args.keep_replay``, of all rounds so far."""

    name = "online_filtered_bc"
    starts_from_bc = True

    def setup(self, stage: str) -> None:
        """See `LanguageModule.setup`.

        Raises:
            UserError: if the datamodule does not play rounds.
        """
        online_datamodule(self.trainer, type(self).__name__)
        super().setup(stage)
