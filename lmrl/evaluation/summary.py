"""How episodes went, as numbers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmrl.types import Episode

__all__ = ["EpisodeTable"]


class EpisodeTable(NamedTuple):
    """What is counted of E episodes, (E,) each."""

    returns: NDArray[np.float64]
    """Undiscounted."""
    lengths: NDArray[np.int64]
    """In actions."""
    successes: NDArray[np.int64]
    """0 or 1."""
    illegal: NDArray[np.int64]
    """Actions that the rules did not know."""

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> "EpisodeTable":
        """The table of some episodes."""
        return cls(
            np.asarray([e.total_reward for e in episodes], dtype=np.float64),
            np.asarray([len(e) for e in episodes], dtype=np.int64),
            np.asarray([e.success for e in episodes], dtype=np.int64),
            np.asarray([e.illegal for e in episodes], dtype=np.int64),
        )

    def means(self) -> dict[str, float]:
        """``return_mean``, ``success_rate`` and ``length_mean`` over episodes, ``illegal_rate`` over all actions."""
        return {
            "return_mean": float(np.mean(self.returns)),
            "success_rate": int(self.successes.sum()) / len(self.successes),
            "length_mean": int(self.lengths.sum()) / len(self.lengths),
            "illegal_rate": int(self.illegal.sum()) / max(1, int(self.lengths.sum())),
        }

    def spread(self) -> dict[str, float]:
        """Standard deviation and percentiles over episodes: ``return_std``, ``return_p10``, ``length_p90``..."""
        found: dict[str, float] = {}
        for name, values in (("return", self.returns), ("length", self.lengths)):
            found[f"{name}_std"] = float(np.std(values))
            found |= {f"{name}_p{share}": float(np.percentile(values, share)) for share in (0, 10, 50, 90, 100)}
        return found
