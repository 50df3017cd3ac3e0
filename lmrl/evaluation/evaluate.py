"""Let a policy play a task and sum up how it did."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from lmrl.envs import registration
from lmrl.envs.scores import Scores, normalize
from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.evaluation.intervals import bootstrap_mean, wilson
from lmrl.partners import environment
from lmrl.protocols import Described, Policy
from lmrl.ranks import shared_out
from lmrl.rollout import Start, episode_seed, in_order, rollout

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a policy played, and the numbers that follow from it."""

    task: str
    policy: str
    """The name by which tables show it."""
    episodes: tuple[Episode, ...]
    """In the order of their starts, whatever the order in which they ended."""
    seed: int
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What the result was made with: decoding settings, dataset, opponent, versions. JSON-like."""

    def scores(self) -> dict[str, Any]:
        """The content of ``scores.json``.

        ``return_mean`` is undiscounted; ``return_ci`` is its 95 % percentile bootstrap interval over episodes and
        ``normalized_ci`` the same interval on the normalised scale; ``success_ci`` is Wilson's. ``illegal_rate``
        is the share of actions that the rules did not know. ``warnings`` names values outside of the task's
        constants; nothing is clipped.
        """
        published = registration.task(self.task).scores
        returns = [episode.total_reward for episode in self.episodes]
        mean, interval = float(np.mean(returns)), bootstrap_mean(returns)
        successes, actions = sum(episode.success for episode in self.episodes), sum(map(len, self.episodes))
        return {
            "task": self.task,
            "policy": self.policy,
            "episodes": len(self.episodes),
            "return_mean": mean,
            "return_ci": list(interval),
            "normalized": normalize(mean, published),
            "normalized_ci": [normalize(end, published) for end in interval],
            "success_rate": successes / len(self.episodes),
            "success_ci": list(wilson(successes, len(self.episodes))),
            "length_mean": actions / len(self.episodes),
            "illegal_rate": sum(episode.illegal for episode in self.episodes) / max(1, actions),
            "seed": self.seed,
            "warnings": _warnings(returns, published),
            "provenance": dict(self.provenance),
        }


def evaluate(
    policy: Policy,
    task: str,
    episodes: int,
    seed: int = 0,
    slots: int = 32,
    on_episode: Callable[[Episode], None] | None = None,
    *,
    name: str | None = None,
    provenance: Mapping[str, Any] | None = None,
    env: Mapping[str, Any] | None = None,
    together: bool = False,
) -> Evaluation:
    """Play `episodes` episodes and return them with their scores.

    Episode ``i`` begins at the task's start ``i`` (cyclically, where the task declares starts) with a seed that
    follows from `seed` and ``i`` alone, so that the result does not depend on `slots`.

    Args:
        policy: whoever plays.
        task: name of a task, one of `lmrl.tasks()`.
        episodes: how many, at least one.
        seed: of the whole evaluation.
        slots: how many environments play side by side.
        on_episode: called with each episode as it ends (for progress bars).
        name: how the policy is called in tables; its class name if left out.
        provenance: what else belongs to the identity of the result, JSON-like.
        env: arguments of the environment, as for `lmrl.make`; ``partner`` may be a name (see `lmrl.partners`).
        together: share the episodes among the processes that train together; all of them have to call, and all get
            the whole result, which is that of one process.

    Raises:
        UserError: an unknown task, fewer than one episode or slot, or a negative seed.
    """
    record = registration.task(task)
    for argument, value, least in (("episodes", episodes, 1), ("slots", slots, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"{argument} must be at least {least}, got {value}")
    starts = [Start(episode_seed(seed, i), _options(record.starts, i)) for i in range(episodes)]
    make = environment(task, env)

    def play(mine: Sequence[Start]) -> list[Episode]:
        found = []
        for order, episode in rollout(policy, make, mine, task=task, slots=slots):
            found.append((order, episode))
            if on_episode is not None:
                on_episode(episode)
        return in_order(found)

    played = shared_out(starts, play) if together else play(starts)
    player = {"player": policy.describe()} if isinstance(policy, Described) else {}
    made_with = {"versions": _versions(), "env": dict(env or {}), **player, **_opponent(played[0])}
    return Evaluation(task, name or type(policy).__name__, tuple(played), seed, {**made_with, **(provenance or {})})


def _opponent(episode: Episode) -> dict[str, Any]:
    """Whom it was played with or against, where the game says so."""
    return {name: episode.info[name] for name in ("opponent", "partner") if name in episode.info}


def _options(starts: tuple[Mapping[str, Any], ...], episode: int) -> Mapping[str, Any] | None:
    return starts[episode % len(starts)] if starts else None


def _versions() -> dict[str, str]:
    found = {}
    for package in ("lmrl", "torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # a checkout that is on the path but not installed
            continue
    return found


def _warnings(returns: list[float], published: Scores) -> list[str]:
    mean, low, high = float(np.mean(returns)), published.minimum, published.maximum
    found = []
    if mean < low or (high is not None and mean > high):
        to = "" if high is None else f" to {high:g}"
        found.append(f"the mean return {mean:.2f} lies outside of the constants' range, {low:g}{to}; it is not clipped")
    # The maximum is a mean over starts, so single episodes may well lie above it; none should be below the minimum.
    if below := sum(value < low for value in returns):
        found.append(f"{below} of {len(returns)} returns lie below the constants' minimum {low:g}")
    return found
