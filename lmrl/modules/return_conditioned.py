"""BC with the return of the episode in the prompt (Chen et al. 2021, arXiv 2106.01345, for texts)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lmrl.datamodules.offline import OfflineDataModule
from lmrl.datamodules.spec import BatchSpec
from lmrl.errors import UserError, check_range
from lmrl.losses import bin_means, bin_of, quantile_edges
from lmrl.modules.bc import BC
from lmrl.policies import ConditionedPolicy
from lmrl.policies.conditioned import with_line
from lmrl.types import Episode

__all__ = ["ReturnConditionedBC"]


class ReturnConditionedBC(BC):
    r"""BC on episodes that begin with the return to come, ``return 7 of 10\n``; the policy reads the wanted return.

    Returns are given as quantile bins of the training episodes. The line stands before the first observation where the
    policy reads all texts, and before every observation where it reads the newest ones alone.
    """

    name = "return_conditioned"

    def __init__(self, bins: int = 10, **shared: Any) -> None:
        """Build the language model.

        Args:
            bins: number of bins. With one it is BC.
            **shared: arguments of `BC`.

        Raises:
            UserError: for no bin, and as `BC`.
        """
        check_range("[1, inf)", bins=bins)
        super().__init__(**shared)
        self.bins = bins
        self.return_edges: Tensor
        self.bin_returns: Tensor
        self.register_buffer("return_edges", torch.full((bins - 1,), torch.nan))
        self.register_buffer("bin_returns", torch.full((bins,), torch.nan))

    def setup(self, stage: str) -> None:
        """See `LanguageModule.setup`; find the bins of the training episodes, unless they are known.

        Raises:
            UserError: they cannot be found, or the datamodule plays rounds.
        """
        super().setup(stage)
        if not self.bin_returns.isnan().all():  # they come from a checkpoint, and lines must keep their meaning
            return
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, OfflineDataModule):
            raise UserError(
                "ReturnConditionedBC needs an offline datamodule, whose episodes say what returns there are"
            )
        returns = torch.tensor([episode.total_reward for episode in data.split()[0]])
        self.return_edges.copy_(quantile_edges(returns, self.bins))
        self.bin_returns.copy_(bin_means(returns, self.return_edges))

    def batch_spec(self) -> BatchSpec:
        """Declare batches of episodes whose prompt contains their return."""
        return replace(super().batch_spec(), prepare=self.prepare)

    def prepare(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The same episodes, with their own return in the prompt."""
        returns = torch.tensor([episode.total_reward for episode in episodes])
        prepared = []
        for episode, bin_index in zip(episodes, bin_of(returns, self.return_edges.cpu()).tolist(), strict=True):
            prepared.append(self._with_line(episode, self.line(bin_index + 1)))  # bins are counted from 1 in prompts
        return prepared

    def line(self, wish: int | None = None) -> str:
        """The line of the prompt that asks for the return of a bin.

        Args:
            wish: number of the bin, from 1; None: the best one.

        Raises:
            UserError: there is no such bin, no training episode is in it, or the bins are not known yet.
        """
        # The numbers of the bins that hold training episodes.
        known = [number for number, mean in enumerate(self.bin_returns.tolist(), start=1) if not math.isnan(mean)]
        if not known:
            raise UserError("ReturnConditionedBC does not know what returns there are: fit it, or load it")
        number = known[-1] if wish is None else wish
        if number not in known:
            raise UserError(f"wish must be the number of a bin with training episodes, one of {known}, got {wish!r}")
        return "" if self.bins == 1 else f"return {number} of {self.bins}\n"

    @property
    def prompt_line(self) -> str:
        """Return the line with which the policy acts."""
        return self.line()

    def as_read(self, episode: Episode) -> Episode:
        """Return the episode with the line with which the policy acts."""
        return self._with_line(super().as_read(episode), self.prompt_line)

    def policy(self, wish: int | None = None, **settings: Any) -> ConditionedPolicy:
        """Sample from the model with the return of a bin in the prompt.

        Args:
            wish: number of the bin, from 1 (the lowest returns); None: the best one.
            **settings: see `lmrl.policies.LMPolicy`.

        Raises:
            UserError: as `line`.
        """
        return ConditionedPolicy(super().policy(**settings), self.line(wish), self._always)

    def reranker(self, proposals: Sequence[str], wish: int | None = None, **settings: Any) -> ConditionedPolicy:
        """Rank actions by likelihood, with the prompt of `policy`; for `settings` see `lmrl.policies.RerankPolicy`."""
        return ConditionedPolicy(super().reranker(proposals, **settings), self.line(wish), self._always)

    def value_state_dict(self) -> dict[str, Tensor]:
        """The lower edges of the bins, ``return_edges``, and the mean return of each, ``bin_returns``."""
        return {"return_edges": self.return_edges, "bin_returns": self.bin_returns}

    @property
    def _always(self) -> bool:
        return self.context_window().texts is not None

    def _with_line(self, episode: Episode, line: str) -> Episode:
        return replace(episode, observations=with_line(episode.observations, line, self._always))
