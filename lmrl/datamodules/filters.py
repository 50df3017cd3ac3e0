"""Which episodes to learn from: the choices of filtered BC."""

from collections.abc import Sequence
from dataclasses import dataclass

from lmrl.episode import Episode
from lmrl.errors import UserError

__all__ = ["Filter"]


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps whole episodes by success or by undiscounted return. All conditions that are given must hold."""

    success: bool = False
    """Only solved episodes (the paper's filter for the maze)."""
    min_return: float | None = None
    """Only episodes of at least this return."""
    top_fraction: float | None = None
    """Of those, the best ``int(top_fraction * n)`` (at least one) by return; among equals the earlier ones."""

    def __post_init__(self) -> None:
        if self.top_fraction is not None and not 0.0 < self.top_fraction <= 1.0:
            raise UserError(f"top_fraction must be in (0, 1], got {self.top_fraction}")

    def keep(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The kept episodes in their order.

        Raises:
            UserError: if none is left.
        """
        kept = [e for e in episodes if not self.success or e.success]
        kept = [e for e in kept if self.min_return is None or e.total_reward >= self.min_return]
        if self.top_fraction is not None and kept:
            best = sorted(range(len(kept)), key=lambda index: -kept[index].total_reward)
            chosen = sorted(best[: max(1, int(self.top_fraction * len(kept)))])
            kept = [kept[index] for index in chosen]
        if not kept:
            raise UserError(f"{self} keeps none of {len(episodes)} episodes: there is nothing to train on")
        return kept
