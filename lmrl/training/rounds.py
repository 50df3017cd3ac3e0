"""Episodes of a round as segments with columns: what was noted when they were sampled, and what is computed of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from lightning.fabric.utilities import move_data_to_device
from numpy.typing import NDArray
from torch import Tensor

from lmrl.errors import UserError, check_range
from lmrl.tokens.collate import TokenBatch, collate
from lmrl.tokens.segments import Segment
from lmrl.types import Episode
from lmrl.utils.distributed import all_gather_objects, rank_and_world_size

__all__ = [
    "RolloutCorrection",
    "Vector",
    "attach_columns",
    "joined",
    "logprob_gaps",
    "read_batches",
    "rescored",
    "rewards_of",
    "sampled",
]

T = TypeVar("T")
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RolloutCorrection:
    """What is done about a round that another program has sampled with the weights of the policy.

    Raises:
        UserError: a number that is not positive.
    """

    importance_cap: float | None = None
    """Weigh losses by `lmrl.losses.importance_weights` of at most this; None: not at all."""
    max_gap: float | None = 0.1
    """Refuse a round with a larger mean gap of log-probabilities, in nats per token; None: none."""

    def __post_init__(self) -> None:
        check_range("(0, inf)", importance_cap=self.importance_cap, max_gap=self.max_gap)


def logprob_gaps(logprobs: Vector, sampler_logprobs: Vector, max_gap: float | None) -> dict[str, float]:
    """Return the mean and the largest gap between the sampler's log-probabilities and the policy's own.

    Args:
        logprobs: (N,) of the action tokens of a round under the policy.
        sampler_logprobs: (N,) as they were told.
        max_gap: see `RolloutCorrection`.

    Raises:
        UserError: the mean is larger.
    """
    gaps = np.abs(logprobs - sampler_logprobs)
    mean, most = (float(gaps.mean()), float(gaps.max())) if len(gaps) else (0.0, 0.0)
    if max_gap is not None and not mean <= max_gap:
        raise UserError(
            f"the round was not sampled with the weights that learn: log-probabilities of its tokens differ by "
            f"{mean:.3g} nats on average (max_gap: {max_gap:g}). Has the server not loaded them, or not as they are?"
        )
    return {"logprob_gap": mean, "logprob_gap_max": most}


def rescored(episodes: Sequence[Episode], scores: Sequence[Vector]) -> list[Episode]:
    """The episodes with log-probabilities, and values where there are some, as the policy that learns has them.

    Args:
        episodes: of a round.
        scores: of each, (T, 1) log-probabilities of its tokens or (T, 2) with V of their states next to them.
    """
    found = []
    for episode, numbers in zip(episodes, scores, strict=True):
        ends = np.cumsum([len(ids) for ids in episode.action_ids])[:-1]
        logprobs, *values = (
            tuple(tuple(turn.tolist()) for turn in np.split(column, ends)) for column in numbers.transpose()
        )
        found.append(
            replace(episode, action_logprobs=logprobs, action_values=values[0] if values else (), final_value=None)
        )
    return found


def sampled(episodes: Sequence[Episode], name: str, segments: Sequence[list[Segment]]) -> list[Vector]:
    """(T,) per episode: what was noted about each action token when it was sampled.

    Args:
        episodes: of a round.
        name: ``action_logprobs`` or ``action_values``.
        segments: of each episode.

    Raises:
        UserError: if that is not about exactly the action tokens in the segments.
    """
    found = []
    for episode, its in zip(episodes, segments, strict=True):
        numbers = [number for turn in getattr(episode, name) for number in turn]
        ids = [token for turn in episode.action_ids for token in turn]
        if len(numbers) != len(ids) or [token for part in its for token in part.token.tolist()] != ids:
            raise UserError(
                f"episodes of a round need {name} of the very tokens that are trained on; seed {episode.seed} has "
                f"{len(numbers)} of them for {len(ids)} sampled tokens"
            )
        found.append(np.asarray(numbers, dtype=np.float64))
    return found


def rewards_of(segments: Sequence[Segment]) -> Vector:
    """(T,) the rewards of the action tokens of one episode."""
    return np.concatenate([segment.reward for segment in segments])


def joined(vectors: Sequence[Vector]) -> Vector:
    """The vectors of all episodes, one after the other."""
    return np.concatenate([*vectors, np.zeros(0)])


def attach_columns(segments: Sequence[list[Segment]], columns: Mapping[str, Vector]) -> list[list[Segment]]:
    """The segments with columns of numbers about their action tokens, beside those that they have.

    Args:
        segments: of each episode of a round.
        columns: by name, of the action tokens of all segments, one after the other.
    """
    narrow = {name: column.astype(np.float32) for name, column in columns.items()}
    ends = iter(np.cumsum([len(part.col) for its in segments for part in its]).tolist())
    return [
        [
            replace(
                part,
                columns={
                    **part.columns,
                    **{name: column[end - len(part.col) : end] for name, column in narrow.items()},
                },
            )
            for part, end in zip(its, ends, strict=False)
        ]
        for its in segments
    ]


def read_batches(
    segments: Sequence[Segment],
    use: Callable[[TokenBatch, Tensor], T],
    *,
    size: int,
    bootstrap: bool,
    device: torch.device,
) -> list[T]:
    """Apply a function to batches of segments on all ranks together.

    Ranks share the batches. Where there is none left for a rank, it reads the last one too: if the weights are in
    shards, forward passes are made by all together.

    Args:
        segments: in any order.
        use: is given a batch and the number of action tokens of each of its segments.
        size: segments in a batch.
        bootstrap: whether batches hold the states that follow.
        device: where `use` computes.

    Returns:
        One result per batch, on all ranks.
    """
    rank, world = rank_and_world_size()
    groups = [segments[first : first + size] for first in range(0, len(segments), size)]
    mine = []
    for first in range(0, len(groups), world):
        group = groups[min(first + rank, len(groups) - 1)]
        counts = torch.tensor([len(segment.col) for segment in group])
        mine.append(use(*move_data_to_device((collate(group, bootstrap=bootstrap), counts), device)))
    found = all_gather_objects(mine)
    return [found[index % world][index // world] for index in range(len(groups))]
