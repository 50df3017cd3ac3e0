"""How much text a model reads, in numbers that decide what it costs."""

from collections.abc import Iterable
from typing import NamedTuple

from lmrl.tokens.segments import Segment

__all__ = ["Amounts", "amounts_of_segments"]


class Amounts(NamedTuple):
    """How much a model reads and how much of it are actions."""

    ids: int = 0
    pairs: int = 0
    """Pairs of ids in a row."""
    states: int = 0
    tokens: int = 0
    """Action tokens."""

    def plus(self, other: "Amounts") -> "Amounts":
        """Return the sum."""
        return Amounts(
            ids=self.ids + other.ids,
            pairs=self.pairs + other.pairs,
            states=self.states + other.states,
            tokens=self.tokens + other.tokens,
        )

    def minus(self, other: "Amounts") -> "Amounts":
        """Return the difference."""
        return Amounts(
            ids=self.ids - other.ids,
            pairs=self.pairs - other.pairs,
            states=self.states - other.states,
            tokens=self.tokens - other.tokens,
        )


def amounts_of_segments(segments: Iterable[Segment]) -> Amounts:
    """Return what segments hold, each read in a row of its own."""
    ids = 0
    pairs = 0
    tokens = 0
    for segment in segments:
        ids += len(segment.ids)
        pairs += len(segment.ids) ** 2
        tokens += len(segment.col)
    # In a row of its own, each action token has its own state.
    return Amounts(ids=ids, pairs=pairs, states=tokens, tokens=tokens)
