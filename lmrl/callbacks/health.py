"""Numbers that tell a healthy online run from an ill one, and the rule by which a run that has fallen is stopped."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from torch import Tensor

from lmrl.types import Episode

__all__ = ["RoundHealth", "causes", "logged_of", "stop_run"]

WINDOW = 5
"""Rounds whose episodes are looked at together."""
STANDARD_ERRORS = 6.0
"""Standard errors by which a window must be below the best one to count as fallen."""

#: Keys that the group ``health/`` repeats, by the last part of what an algorithm logs.
_REPEATED = {
    "entropy": "entropy",
    "kl": "kl_to_start",
    "approx_kl": "kl_to_last_round",
    "clipfrac": "clip_fraction",
    "explained_variance": "explained_variance",
    "explained_by_turn": "explained_by_turn",
    "critic_share": "critic_share",
}


class _Round(NamedTuple):
    """The returns of a round in three numbers."""

    starts: int
    """Episodes, or groups of episodes that began alike."""
    total: float
    """Sum of their mean returns."""
    squares: float
    """Sum of the squares of their mean returns."""


class _Window(NamedTuple):
    """The mean return of `WINDOW` rounds in a row."""

    last_round: int
    mean: float
    variance: float
    """Variance of the mean."""


class RoundHealth:
    """Watches the returns of rounds.

    A run has fallen when the mean return of its last five rounds is more than six standard errors below that of its
    best five rounds in a row. The standard error is that of the difference of two means over the episodes of five
    rounds each. Episodes of a group have the same start and similar returns, so a group counts once, by its mean. Six,
    since the best of hundreds of windows is itself a lucky one: noise alone spreads over four.
    """

    def __init__(self) -> None:
        self.rounds: deque[_Round] = deque(maxlen=WINDOW)
        self.best: _Window | None = None

    def add(self, number: int, episodes: Sequence[Episode]) -> str | None:
        """Add a round.

        Args:
            number: number of the round.
            episodes: the episodes that no failure ended.

        Returns:
            One line if the run has fallen, else None.
        """
        returns = _returns_of_starts(episodes)
        self.rounds.append(_Round(len(returns), float(returns.sum()), float(np.square(returns).sum())))
        if len(self.rounds) < WINDOW:
            return None
        count = sum(entry.starts for entry in self.rounds)
        mean = sum(entry.total for entry in self.rounds) / count
        mean_square = sum(entry.squares for entry in self.rounds) / count
        # Variance of the mean over the starts of the window.
        variance = max(0.0, mean_square - mean**2) / max(1, count - 1)
        if self.best is None or mean > self.best.mean:
            self.best = _Window(number, mean, variance)
            return None
        best = self.best
        error = (variance + best.variance) ** 0.5
        rounding = 1e-9 * max(1.0, abs(best.mean))
        if best.mean - mean <= STANDARD_ERRORS * error + rounding:
            return None
        # Without an error, all starts of both windows returned the same.
        by = f"{(best.mean - mean) / error:.1f} standard errors" if error else "returns within each do not differ"
        return (
            f"the run has fallen: a return of {mean:.4g} in rounds {number - WINDOW + 1} to {number}, "
            f"{best.mean:.4g} in rounds {best.last_round - WINDOW + 1} to {best.last_round} ({by})"
        )

    def state_dict(self) -> dict[str, Any]:
        """The rounds of the window and the best one."""
        # Plain tuples: a checkpoint is read without pickled classes.
        best = None if self.best is None else tuple(self.best)
        return {"rounds": [list(entry) for entry in self.rounds], "best": best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume."""
        self.rounds = deque(maxlen=WINDOW)
        for starts, total, squares in state["rounds"]:
            self.rounds.append(_Round(int(starts), float(total), float(squares)))
        self.best = None
        if state["best"] is not None:
            last_round, mean, variance = state["best"]
            self.best = _Window(int(last_round), float(mean), float(variance))


def _returns_of_starts(episodes: Sequence[Episode]) -> NDArray[np.float64]:
    """Return the mean return of each group, or the return of each episode where there are no groups."""
    by_start: dict[Any, list[float]] = {}
    for number, episode in enumerate(episodes):
        start = episode.info.get("group", ("episode", number))
        by_start.setdefault(start, []).append(episode.total_reward)
    return np.asarray([np.mean(returns) for returns in by_start.values()], dtype=np.float64)


def logged_of(name: str, logged: Mapping[str, Tensor]) -> dict[str, float]:
    """Return what the group ``health/`` repeats of what was logged last.

    Args:
        name: name of the algorithm.
        logged: the newest logged values, by key.
    """
    metrics = {}
    sources = {f"{name}/{key}": health for key, health in _REPEATED.items()}
    sources["train/noise_scale"] = "noise_scale"
    for source, health in sources.items():
        if source in logged:
            metrics[f"health/{health}"] = float(logged[source])
    return metrics


def causes(metrics: Mapping[str, float]) -> str:
    """Say in a few words what is likely to make a run fall."""
    found = []
    if metrics.get("health/critic_share", 0.0) > 0.5:
        found.append("most of the gradient is the critic's (critic: detached, or a smaller value_weight)")
    if metrics.get("health/kl_to_last_round", 0.0) > 0.1 or metrics.get("health/clip_fraction", 0.0) > 0.3:
        found.append("the policy moves far within a round (a smaller lr, fewer epochs)")
    if metrics.get("health/entropy", 1.0) < 0.05:
        found.append("it hardly varies its actions any more (a larger entropy_weight or kl_weight)")
    if metrics.get("health/kl_to_start", 0.0) > 1.0:
        found.append("it is far from where it began (a larger kl_weight)")
    return "; ".join(found) or "nothing else looks wrong: rounds may be too small (train/noise_scale) or lr too large"


def stop_run(trainer: Trainer, line: str, metrics: Mapping[str, float]) -> None:
    """End a training that has fallen, with a warning that names the likely causes; its best checkpoint stays.

    Args:
        trainer: the trainer of the run.
        line: the message that `RoundHealth.add` returned.
        metrics: the group ``health/`` of the last round.
    """
    why = causes(metrics)
    rank_zero_warn(f"{line}. {why[0].upper()}{why[1:]}. Training stops; `best` is kept")
    trainer.should_stop = True
