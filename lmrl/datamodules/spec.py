"""What an algorithm wants from its datamodule, as one frozen record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from transformers import PreTrainedTokenizerBase

from lmrl.datamodules.filters import Filter
from lmrl.tokens.segments import Segment
from lmrl.types import Episode

__all__ = ["BatchSpec", "PostRollout", "RolloutSource"]

RolloutSource: TypeAlias = Callable[[int], list[Episode]]
"""Plays the round of a number, with the weights of now."""

PostRollout: TypeAlias = Callable[[Sequence[Episode], Sequence[list[Segment]]], list[list[Segment]]]
"""Episodes of a round and the segments of each, to the same segments with columns for the loss (`Segment.columns`)."""


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """What batches are made for and must hold; see `lmrl.modules.LanguageModule.batch_spec`."""

    tokenizer: PreTrainedTokenizerBase | None = None
    """Of the model; None: the bundled one."""
    positions: int | None = None
    """How many tokens the model can read; None: 1024."""
    filter: Filter = field(default_factory=Filter)
    """Which training episodes are learned from."""
    returns_gamma: float | None = None
    """Discount per action token of `TokenBatch.return_to_go`; None leaves it NaN."""
    bootstrap: bool = False
    """Whether `TokenBatch.next` is needed: then the contexts beyond the last actions are read too."""
    observations: bool = False
    """Whether observation tokens are indexed (`TokenBatch.observation_state`)."""
    post_rollout: PostRollout | None = None
    """Applied once to each round that is played; None learns from rounds as they are."""
