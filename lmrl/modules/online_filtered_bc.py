"""Online filtered behavioural cloning."""

from lmrl.errors import UserError
from lmrl.modules.filtered_bc import FilteredBC

__all__ = ["OnlineFilteredBC"]


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
