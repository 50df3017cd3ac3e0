"""Metrics of `torchmetrics` over the episodes of a rollout or an evaluation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from lmrl.evaluation.episode_table import EpisodeTable
from lmrl.types import Episode

__all__ = ["EpisodeScores", "RolloutPace"]


class EpisodeScores(Metric):
    """Means and spread of returns and lengths, rates of success and of illegal actions, over episodes of all ranks.

    The numbers are those of ``scores.json`` (`lmrl.evaluation.Evaluation.scores`). Every rank has to call `update`,
    even without episodes.

    Args:
        **settings: arguments of `torchmetrics.Metric`; ``sync_on_compute=False`` where each rank has all episodes.
    """

    full_state_update = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in EpisodeTable._fields:
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, episodes: Sequence[Episode]) -> None:
        """Add episodes."""
        for name, column in EpisodeTable.of(episodes)._asdict().items():
            getattr(self, name).append(torch.from_numpy(column).to(self.device))

    def compute(self) -> dict[str, float]:
        """``return_mean``, ``return_std``, ``return_p50``, ``success_rate``, ``illegal_rate``..."""
        columns = []
        for name in EpisodeTable._fields:
            column: Tensor = dim_zero_cat(getattr(self, name))
            columns.append(column.cpu().numpy())
        table = EpisodeTable(*columns)
        return {**table.means(), **table.spread()}


class RolloutPace(Metric):
    """How often a policy was asked, for how many turns, and how many tokens it produced, over all ranks."""

    full_state_update = False
    calls: Tensor
    turns: Tensor
    tokens: Tensor

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in ("calls", "turns", "tokens"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, turns: int, tokens: int, calls: int = 1) -> None:
        """Add calls: the requests that were answered, and the tokens of the answers."""
        self.calls = self.calls + calls
        self.turns = self.turns + turns
        self.tokens = self.tokens + tokens

    def compute(self) -> dict[str, int]:
        """``calls``, ``turns`` and ``tokens``."""
        return {"calls": int(self.calls), "turns": int(self.turns), "tokens": int(self.tokens)}
