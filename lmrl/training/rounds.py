"""A round of episodes as PPO learns from it: what each action token was worth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from lightning.pytorch import Trainer
from numpy.typing import NDArray

from lmrl.errors import UserError
from lmrl.losses import explained_variance, gae, k3, whiten, with_kl_penalty
from lmrl.tokens.segments import Segment
from lmrl.types import Episode

__all__ = ["Judged", "judge", "log_now"]


def log_now(trainer: Trainer, metrics: Mapping[str, float]) -> None:
    """Write metrics under the present step, wherever in the loop that is (``self.log`` works in some hooks alone)."""
    for logger in trainer.loggers:
        logger.log_metrics(dict(metrics), step=trainer.global_step)
    trainer.callback_metrics.update({name: torch.tensor(value) for name, value in metrics.items()})


Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Judged:
    """A round with what `lmrl.losses.Experience` holds attached to each action token."""

    parts: list[list[Segment]]
    """Segments of each episode."""
    kl: float
    """Estimate of the mean KL between policy and start policy, per action token."""
    explained_variance: float
    """Of the targets by the values that the policy had."""


def judge(
    episodes: Sequence[Episode],
    parts: Sequence[list[Segment]],
    start_logprobs: Sequence[Vector],
    end_values: Sequence[float],
    *,
    kl_weight: float,
    gamma: float,
    gae_lambda: float,
) -> Judged:
    """Price, advantage, target and whitening, over the action tokens of all turns of each episode.

    Args:
        episodes: with what was sampled.
        parts: segments of each.
        start_logprobs: (T,) each, under the policy that the run started from.
        end_values: V after the last observation of each; 0 where the rules ended it.
        kl_weight: price of a nat.
        gamma: discount per action token.
        gae_lambda: see `lmrl.losses.gae`.

    Raises:
        UserError: if the episodes do not hold what was noted about exactly the tokens in the segments.
    """
    logprobs, values = (_sampled(episodes, name, parts) for name in ("action_logprobs", "action_values"))
    advantages = [
        gae(with_kl_penalty(_rewards(its), now, start, kl_weight), value, end, gamma, gae_lambda)
        for its, now, start, value, end in zip(parts, logprobs, start_logprobs, values, end_values, strict=True)
    ]
    targets = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
    rows = np.stack([_joined(logprobs), _joined(values), whiten(_joined(advantages)), _joined(targets)])
    moved = k3(_joined(start_logprobs) - rows[0])
    return Judged(
        parts=_attached(parts, rows.astype(np.float32)),
        kl=float(moved.mean()) if len(moved) else 0.0,
        explained_variance=explained_variance(rows[1], rows[3]),
    )


def _joined(vectors: Sequence[Vector]) -> Vector:
    return np.concatenate([*vectors, np.zeros(0)])


def _rewards(parts: Sequence[Segment]) -> Vector:
    return np.concatenate([part.reward for part in parts])


def _sampled(episodes: Sequence[Episode], name: str, parts: Sequence[list[Segment]]) -> list[Vector]:
    """(T,) per episode: what was noted about each token when it was sampled."""
    found = []
    for episode, its in zip(episodes, parts, strict=True):
        numbers = [number for turn in getattr(episode, name) for number in turn]
        ids = [token for turn in episode.action_ids for token in turn]
        if len(numbers) != len(ids) or [token for part in its for token in part.token.tolist()] != ids:
            raise UserError(
                f"episodes of a round need {name} of the very tokens that are trained on; seed {episode.seed} has "
                f"{len(numbers)} of them for {len(ids)} sampled tokens"
            )
        found.append(np.asarray(numbers, dtype=np.float64))
    return found


def _attached(parts: Sequence[list[Segment]], rows: NDArray[np.float32]) -> list[list[Segment]]:
    """The segments with their columns of ``(4, tokens of all)``."""
    ends = iter(np.cumsum([len(part.col) for its in parts for part in its]).tolist())
    return [
        [replace(part, extra=rows[:, end - len(part.col) : end]) for part, end in zip(its, ends, strict=False)]
        for its in parts
    ]
