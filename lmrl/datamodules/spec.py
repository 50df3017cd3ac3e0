"""The requirements of an algorithm on its datamodule, as one frozen record: episodes, context and targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from transformers import PreTrainedTokenizerBase

from lmrl.datamodules.replay_buffer import Outcome
from lmrl.errors import UserError, check_range
from lmrl.tokens.segments import Segment
from lmrl.types import Episode

__all__ = ["BatchSpec", "Collector", "Filter", "Prepare", "RolloutLearner"]


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps whole episodes by success or by undiscounted return. All conditions that are given must hold."""

    success: bool = False
    """Only solved episodes."""
    min_return: float | None = None
    """Only episodes of at least this return."""
    top_fraction: float | None = None
    """Only the best ``int(top_fraction * n)`` of those (at least one) by return; among equals the earlier ones."""

    def __post_init__(self) -> None:
        check_range("(0, 1]", top_fraction=self.top_fraction)
        check_range("(-inf, inf)", min_return=self.min_return)

    def keep(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The kept episodes in their order.

        Raises:
            UserError: if none is left.
        """
        chosen = self.choose(episodes)
        if not chosen:
            raise UserError(f"{self} keeps none of {len(episodes)} episodes: there is nothing to train on")
        return [episodes[index] for index in chosen]

    def choose(self, outcomes: Sequence[Episode | Outcome]) -> list[int]:
        """Indices of what is kept, in order; there may be none."""
        kept = []
        for index, outcome in enumerate(outcomes):
            if self.success and not outcome.success:
                continue
            if self.min_return is None or outcome.total_reward >= self.min_return:
                kept.append(index)
        if self.top_fraction is None or not kept:
            return kept
        # Sorting is stable, so the earlier ones of equal returns come first.
        best = sorted(kept, key=lambda index: -outcomes[index].total_reward)
        return sorted(best[: max(1, int(self.top_fraction * len(kept)))])


class Collector(Protocol):
    """Collects rounds of episodes: `lmrl.callbacks.RolloutCollection`."""

    def collect(self, number: int) -> list[Episode]:
        """The episodes of a round, played with the present weights, by the number of the round, from 1."""
        ...


class RolloutLearner(Protocol):
    """An algorithm that prepares rounds before it learns from them: `lmrl.modules.policy_gradient.PolicyGradient`."""

    warmup_rounds: int
    """The first rounds, which are prepared (and a critic fitted to them) but not learned from."""

    def prepare_rollout(self, episodes: Sequence[Episode], segments: Sequence[list[Segment]]) -> list[list[Segment]]:
        """The segments of each episode of a round with the columns that the loss reads (`Segment.columns`)."""
        ...


Prepare: TypeAlias = Callable[[Sequence[Episode]], Sequence[Episode]]
"""Recorded episodes to the same episodes, in their order, as the policy is to read them."""


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """The purpose and required fields of batches; see `lmrl.modules.LanguageModule.batch_spec`."""

    tokenizer: PreTrainedTokenizerBase | None = None
    """Tokenizer of the model; None: the bundled one."""
    positions: int | None = None
    """How many tokens the model can read; None: 1024."""
    filter: Filter = field(default_factory=Filter)
    """Which training episodes are learned from."""
    returns_gamma: float | None = None
    """Discount per action token of `TokenBatch.return_to_go`; None leaves it NaN."""
    bootstrap: bool = False
    """Whether `TokenBatch.next` is needed: then the contexts beyond the last actions are read too."""
    after: bool = False
    """Whether `TokenBatch.after` is needed, e.g. for values of whole actions."""
    prepare: Prepare | None = None
    """Applied to the recorded episodes, those for validation too, before they become segments; None leaves them."""
    observations: bool = False
    """Whether observation tokens are indexed (`TokenBatch.observation_state`)."""
    learner: RolloutLearner | None = None
    """The module whose `prepare_rollout` is applied once to each round, which must be sampled at temperature 1; None
    learns from rounds as they are."""
