"""Scores of episodes and the pace of rollouts, as metrics of `torchmetrics`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lmrl.types import Episode

__all__ = ["EpisodeScores", "EpisodeTable", "RolloutPace"]


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


_TYPES = {"returns": torch.float64, "lengths": torch.int64, "successes": torch.int64, "illegal": torch.int64}


class EpisodeScores(Metric):
    """Means and spread of returns and lengths, rates of success and of illegal actions, over episodes of all ranks.

    The numbers are those of ``scores.json`` (`lmrl.evaluation.Evaluation.scores`). Every rank has to update it, if only
    with no episodes.

    Args:
        **settings: arguments of `torchmetrics.Metric`; ``sync_on_compute=False`` where each rank has all episodes.
    """

    full_state_update = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in _TYPES:
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, episodes: Sequence[Episode]) -> None:
        """Add episodes."""
        for name, column in EpisodeTable.of(episodes)._asdict().items():
            getattr(self, name).append(torch.from_numpy(column).to(self.device))

    def compute(self) -> dict[str, float]:
        """``return_mean``, ``return_std``, ``return_p50``, ``success_rate``, ``illegal_rate``..."""
        columns: dict[str, Tensor] = {name: dim_zero_cat(getattr(self, name)) for name in _TYPES}
        table = EpisodeTable(**{name: column.cpu().numpy() for name, column in columns.items()})
        return {**table.means(), **table.spread()}


class RolloutPace(Metric):
    """How often a policy was asked, for how many turns, and how many tokens it said, over all ranks."""

    full_state_update = False
    calls: Tensor
    turns: Tensor
    tokens: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in ("calls", "turns", "tokens"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, turns: int, tokens: int) -> None:
        """Add a call: the requests that were answered, and the tokens of the answers."""
        self.calls = self.calls + 1
        self.turns = self.turns + turns
        self.tokens = self.tokens + tokens

    def compute(self) -> dict[str, int]:
        """``calls``, ``turns`` and ``tokens``."""
        return {name: int(getattr(self, name)) for name in ("calls", "turns", "tokens")}
