"""The published numbers, and the scale that makes tasks comparable: 0 worst, 50 the published average, 100 best.

Source: Abdulhai et al., "LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models", ICML 2025.
Constants of the scale are its Table 5, raw scores Table 4, normalised scores Table 2, dataset statistics Table 1. The
printed normalised scores do not all follow from the printed raw scores and constants; `Scores.note` says where.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ALGORITHMS", "OwnScale", "PublishedData", "Scores", "by_algorithm", "normalize"]

ALGORITHMS = ("bc", "filtered_bc", "mc", "ilql", "ppo", "online_filtered_bc", "gpt4")
"""Keys of `Scores.raw` and `Scores.normalized`, in the order of the paper's columns (more in `Scores.normalized`)."""


@dataclass(frozen=True, slots=True)
class PublishedData:
    """Statistics of the published dataset: lengths in actions, undiscounted returns."""

    size: int
    length_mean: float
    length_std: float
    success: float
    return_mean: float | None
    """None, like `return_std`, where the returns of a file are in another unit."""
    return_std: float | None
    env: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment whose rewards the returns are sums of; empty: those of the task."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The published scores of one task; empty by default."""

    minimum: float = 0.0
    average: float | None = None
    """None, like `maximum`, if no constants were published; then the raw score counts as normalised."""
    maximum: float | None = None
    raw: Mapping[str, float] = field(default_factory=dict)
    """Mean return by algorithm."""
    normalized: Mapping[str, float] = field(default_factory=dict)
    """The printed normalised score by algorithm."""
    data: PublishedData | None = None
    """None where no dataset was published."""
    note: str = ""
    """Known errors of the numbers above."""

    @property
    def any_scale(self) -> bool:
        """Return whether the task has a normalised score: constants, or scores that count as normalised."""
        return self.average is not None or bool(self.normalized)


@dataclass(frozen=True, slots=True)
class OwnScale:
    """The scale of our own results: mean returns of scripted players that play whole episodes.

    The published constants belong to the paper's partners, opponents and data, so they do not apply here.
    """

    random: float
    """Return of the random player; scaled to 0."""
    recorder: float
    """Return of the player that recorded the dataset; scaled to 50."""
    best: float
    """Return of the best known player; scaled to 100."""


def normalize(raw: float, scores: Scores | OwnScale) -> float:
    """Scale a return linearly from ``minimum`` (0) to ``average`` (50), and from there to ``maximum`` (100).

    This is the formula of the paper's appendix E, without clipping. An `OwnScale` uses it with its own three constants.
    A task without constants keeps its raw score.
    """
    if isinstance(scores, OwnScale):
        scores = Scores(scores.random, scores.recorder, scores.best)
    if scores.average is None or scores.maximum is None:
        return raw
    if raw < scores.average:
        return 50 * (raw - scores.minimum) / (scores.average - scores.minimum)
    return 50 + 50 * (raw - scores.average) / (scores.maximum - scores.average)


def by_algorithm(*values: float) -> Mapping[str, float]:
    """Return a mapping from `ALGORITHMS`, in their order, to the given numbers."""
    return dict(zip(ALGORITHMS, values, strict=True))
