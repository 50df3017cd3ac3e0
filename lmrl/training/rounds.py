"""Episodes of a round as records of arrays over their action tokens, from sampling to the batches of the loss."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    "RolloutEpisode",
    "Vector",
    "joined",
    "logprob_gaps",
    "read_batches",
    "rescored",
    "rollout_episode",
    "sampled",
    "set_column",
    "with_columns",
]

T = TypeVar("T")
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RolloutCorrection:
    """Settings for a round that another program has sampled with the weights of the policy.

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


def rescored(episode: Episode, scores: Vector) -> Episode:
    """Return the episode with the log-probabilities, and values if any, of the policy that learns.

    Args:
        episode: of a round.
        scores: (T, 1) log-probabilities of its action tokens, or (T, 2) with V of their states as second column.
    """
    turn_ends = np.cumsum([len(ids) for ids in episode.action_ids])[:-1]
    columns = []
    for column in scores.transpose():
        columns.append(tuple(tuple(turn.tolist()) for turn in np.split(column, turn_ends)))
    values = columns[1] if len(columns) > 1 else ()
    return replace(episode, action_logprobs=columns[0], action_values=values, final_value=None)


def sampled(episode: Episode, name: str, segments: Sequence[Segment]) -> Vector:
    """Return (T,) what was noted about each action token of an episode when it was sampled.

    Args:
        episode: of a round.
        name: ``action_logprobs`` or ``action_values``.
        segments: of the episode.

    Raises:
        UserError: if that is not about exactly the action tokens in the segments.
    """
    numbers = [number for turn in getattr(episode, name) for number in turn]
    ids = [token for turn in episode.action_ids for token in turn]
    trained = [token for segment in segments for token in segment.token.tolist()]
    if len(numbers) != len(ids) or trained != ids:
        raise UserError(
            f"episodes of a round need {name} of the very tokens that are trained on; seed {episode.seed} has "
            f"{len(numbers)} of them for {len(ids)} sampled tokens"
        )
    return np.asarray(numbers, dtype=np.float64)


@dataclass(slots=True)
class RolloutEpisode:
    """An episode of a round, with arrays over its T action tokens."""

    episode: Episode
    segments: list[Segment]
    logprob: Vector
    """(T,) log-probability of each token when it was sampled."""
    ref_logprob: Vector
    """(T,) log-probability of each token under the reference model."""
    reward: Vector
    """(T,) reward of each token; that of a turn sits on its last one."""
    turn_lengths: NDArray[np.int64]
    """(turns,) number of tokens of each action."""
    columns: dict[str, Vector] = field(default_factory=dict)
    """(T,) each, what the loss reads about each token."""

    @property
    def num_tokens(self) -> int:
        """The number of action tokens, T."""
        return len(self.reward)

    @property
    def turn_starts(self) -> NDArray[np.int64]:
        """(turns,) index of the first token of each action."""
        return np.cumsum(self.turn_lengths) - self.turn_lengths

    def trained_segments(self) -> list[Segment]:
        """Return the segments with `columns`, as batches are made from them."""
        return with_columns(self.segments, self.columns)


def rollout_episode(episode: Episode, segments: list[Segment], ref_logprob: Vector) -> RolloutEpisode:
    """Return the record of an episode of a round.

    Args:
        episode: with what was sampled.
        segments: of the episode.
        ref_logprob: (T,) under the reference model.

    Raises:
        UserError: if the episode does not hold the log-probabilities of exactly the tokens in the segments.
    """
    logprob = sampled(episode, "action_logprobs", segments)
    reward = np.concatenate([segment.reward for segment in segments])
    turn_ends = np.concatenate([segment.turn_end for segment in segments]).nonzero()[0]
    turn_lengths = np.diff(turn_ends, prepend=-1)
    return RolloutEpisode(episode, segments, logprob, ref_logprob, reward, turn_lengths)


def joined(vectors: Iterable[Vector]) -> Vector:
    """Return the vectors of all episodes, one after the other."""
    return np.concatenate([*vectors, np.zeros(0)])


def set_column(rollout: Sequence[RolloutEpisode], name: str, numbers: Vector) -> None:
    """Give each episode its part of a column over all action tokens of a round, (N,)."""
    start = 0
    for episode in rollout:
        end = start + episode.num_tokens
        episode.columns[name] = numbers[start:end]
        start = end


def with_columns(segments: Sequence[Segment], columns: Mapping[str, Vector]) -> list[Segment]:
    """Return the segments of an episode with further columns of numbers about their action tokens.

    Args:
        segments: of one episode.
        columns: (T,) each, by name.
    """
    attached = []
    start = 0
    for segment in segments:
        end = start + len(segment.col)
        added = {name: column[start:end].astype(np.float32) for name, column in columns.items()}
        attached.append(replace(segment, columns={**segment.columns, **added}))
        start = end
    return attached


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
