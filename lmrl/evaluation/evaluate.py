"""Let a policy play a task and sum up how it did."""

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from os import PathLike, fspath
from typing import Any

import numpy as np

from lmrl.envs import registry
from lmrl.envs.scores import Scores, normalize
from lmrl.errors import UserError, check_range, counted
from lmrl.evaluation.intervals import bootstrap_mean, wilson
from lmrl.evaluation.played import EpisodeTable
from lmrl.evaluation.playing import Player, RayWorkers, play_on_workers
from lmrl.loading import PolicySpec, TrainedModule, load_policy, module_task, task_of
from lmrl.partners import environment
from lmrl.rollout import episode_seed
from lmrl.types import Described, Episode, LoadedPolicy, Policy, Start, unwrapped
from lmrl.utils.distributed import map_over_ranks

__all__ = ["Evaluation", "default_episodes", "evaluate"]

_LEAST = 256
"""Episodes that are played where nobody says how many, at least."""

_SELECTION = 2
"""Last word of the keys of the seeds by which checkpoints are chosen."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes of a policy, and the scores that follow from them."""

    task: str
    policy: str
    """The name by which tables show it."""
    episodes: tuple[Episode, ...]
    """In the order of their starts, whatever the order in which they ended."""
    seed: int
    starts: int = 0
    """How many starts were taken in turn; 0: seeds decided how episodes begin."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What the result was made with: decoding settings, dataset, opponent, versions. JSON-like."""

    def __repr__(self) -> str:
        """One line, without the episodes."""
        mean = f"mean return {EpisodeTable.of(self.episodes).means()['return_mean']:.2f}" if self.episodes else "empty"
        played = counted(len(self.episodes), "episode")
        return f"<Evaluation of {self.policy} on {self.task}: {played}, seed {self.seed}, {mean}>"

    def scores(self) -> dict[str, Any]:
        """The content of ``scores.json``.

        ``return_mean`` is undiscounted; ``return_ci`` is its 95 % percentile bootstrap interval over episodes, each
        resampled among those of its start where ``starts`` were taken in turn, and ``normalized_ci`` the same interval
        on the normalised scale. ``own`` is the mean return on the task's own scale (`lmrl.envs.scores.OwnScale`), with
        ``own_ci``; None of a task that has none, and where arguments have changed the environment. ``success_ci`` is
        Wilson's, as if starts were drawn too. ``illegal_rate`` is the share of actions that the rules did not know.
        ``warnings`` names values outside of the task's constants (nothing is clipped) or says that there are none, and
        fixed starts that were not played equally often.
        """
        row = registry.task(self.task)
        published = row.scores
        own = None if self.provenance.get("env") else row.own_scale
        table = EpisodeTable.of(self.episodes)
        returns = table.returns.tolist()
        means = table.means()
        strata = [place % self.starts for place in range(len(returns))] if self.starts else None
        interval = bootstrap_mean(returns, strata=strata)
        return {
            "task": self.task,
            "policy": self.policy,
            "episodes": len(self.episodes),
            "return_mean": means["return_mean"],
            "return_ci": list(interval),
            "normalized": normalize(means["return_mean"], published),
            "normalized_ci": [normalize(end, published) for end in interval],
            "own": None if own is None else normalize(means["return_mean"], own),
            "own_ci": None if own is None else [normalize(end, own) for end in interval],
            "success_rate": means["success_rate"],
            "success_ci": list(wilson(int(table.successes.sum()), len(self.episodes))),
            "length_mean": means["length_mean"],
            "illegal_rate": means["illegal_rate"],
            "seed": self.seed,
            "starts": self.starts,
            "warnings": [*_warnings(returns, published), *_uneven(len(returns), self.starts)],
            "provenance": dict(self.provenance),
        }


def evaluate(
    policy: Policy | LoadedPolicy | TrainedModule | str | PathLike[str],
    task: str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    slots: int = 32,
    on_episode: Callable[[Episode], None] | None = None,
    *,
    name: str | None = None,
    provenance: Mapping[str, Any] | None = None,
    env: Mapping[str, Any] | None = None,
    together: bool = False,
    selection: bool = False,
    allow_other_task: bool = False,
    ray: RayWorkers | None = None,
) -> Evaluation:
    """Play `episodes` episodes and return them with their scores.

    Example::

        evaluate("runs/maze_fo/ilql").scores()["return_mean"]
        evaluate("random", "maze_fo", episodes=1000)

    Episode ``i`` begins at the task's start ``i`` (cyclically, where the task declares starts) with a seed that
    follows from `seed` and ``i`` alone, so that the result does not depend on `slots` (log-probabilities may in their
    last bits). Policies and partners that keep what they have read forget it after a piece, four episodes per
    slot. Pieces are what workers of a Ray cluster are given, so the result is, byte for byte, that of one process.

    Args:
        policy: a policy, the result of `lmrl.load_policy`, a module in memory, or a name as of
            ``lmrl evaluate --policy``: a run folder, a checkpoint, ``random``, ...
        task: name of a task, one of `lmrl.tasks()`; None: the one that a run, checkpoint or module was trained on.
        episodes: how many, at least one; None: `default_episodes`.
        seed: of the whole evaluation.
        slots: how many environments play side by side.
        on_episode: called with each episode as it ends (for progress bars).
        name: how the policy is called in tables; its name or that of its class if left out.
        provenance: what else belongs to the identity of the result, JSON-like.
        env: arguments of the environment, as for `lmrl.make`; ``partner`` may be a name (see `lmrl.partners`).
        together: share the episodes among the processes that train together; all of them have to call, and all get
            the whole result, which is that of one process.
        selection: checkpoints will be chosen by it: it plays starts that the task keeps for that (`Task.selection`) and
            seeds that no other evaluation has, so that none is chosen by what is reported.
        allow_other_task: let a run or checkpoint play another task than the one that it was trained on.
        ray: have processes of a Ray cluster play.

    Raises:
        UserError: an unknown task or policy, none named, a run of another task, fewer than one episode or slot, or a
            negative seed; with `ray` also a policy that other processes cannot make, `together`, and as
            `lmrl.utils.cluster.Workers`.
    """
    if isinstance(policy, str | PathLike):
        spec = PolicySpec.parse(fspath(policy), task)
        record = spec.task
        settings: dict[str, Any] = {"allow_other_task": True} if allow_other_task else {}
        load = partial(spec.load, env, **settings)
        made_by: dict[str, Any] = {"policy": spec.name}
        if spec.published_settings:
            made_by["decoding"] = spec.published_settings
        provenance = {**made_by, **(provenance or {})}
        if ray is not None and ray.make_policy is None:
            ray = replace(ray, make_policy=load)
        name = name or spec.name
        loaded = load()
    else:
        name = name or type(unwrapped(policy)).__name__
        record = task_of([], task or module_task(policy))
        loaded = load_policy(policy, record)
    task = record.name
    episodes = default_episodes(record.name) if episodes is None else episodes
    check_range("[1, inf)", episodes=episodes, slots=slots)
    check_range("[0, inf)", seed=seed)
    fixed = record.selection or record.starts if selection else record.starts
    # Trailing zeros of a key do not count, and the last word of training's rounds is 1.
    apart = (0, _SELECTION) if selection else ()
    starts = [Start(episode_seed(seed, i, *apart), _options(fixed, i)) for i in range(episodes)]
    if ray is not None:
        if together:
            raise UserError("ray must be left out where processes that train together share the episodes")
        played = play_on_workers(ray, loaded.policy, task, env, starts, slots, on_episode)
    else:
        play = Player(loaded.policy, environment(task, env), task, slots, on_episode).play
        played = map_over_ranks(starts, play) if together else play(starts)
    player = {"player": loaded.policy.describe()} if isinstance(loaded.policy, Described) else {}
    weights = loaded.weights
    made_with = {"versions": _versions(), "env": dict(env or {}), **player, **_opponent(played[0])}
    made_with |= {} if weights is None else {"weights": weights}
    made_with |= {"selection": True} if selection else {}
    whole = {**made_with, **(provenance or {})}
    return Evaluation(task, name, tuple(played), seed, len(fixed), whole)


def default_episodes(task: str) -> int:
    """How many episodes an evaluation plays: at least 256, so that the starts of the task come equally often.

    Args:
        task: its name.

    Raises:
        UserError: for an unknown task.
    """
    starts = max(1, len(registry.task(task).starts))
    return starts * -(-_LEAST // starts)


def _opponent(episode: Episode) -> dict[str, Any]:
    """Return the opponent or partner, if the game names one."""
    return {name: episode.info[name] for name in ("opponent", "partner") if name in episode.info}


def _options(starts: tuple[Mapping[str, Any], ...], episode: int) -> Mapping[str, Any] | None:
    return starts[episode % len(starts)] if starts else None


def _versions() -> dict[str, str]:
    # Not that of the installation's metadata, which an editable one does not renew.
    found = {"lmrl": str(sys.modules["lmrl"].__version__)}
    for package in ("torch", "transformers"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _warnings(returns: list[float], published: Scores) -> list[str]:
    if not published.any_scale:
        return ["the task has no published constants: there is no normalised score, its place has the mean return"]
    mean = float(np.mean(returns))
    low = published.minimum
    high = published.maximum
    found = []
    if mean < low or (high is not None and mean > high):
        to = "" if high is None else f" to {high:g}"
        found.append(f"the mean return {mean:.2f} lies outside of the constants' range, {low:g}{to}; it is not clipped")
    # The maximum is a mean over starts, so single episodes may well lie above it; none should be below the minimum.
    below = sum(value < low for value in returns)
    if below:
        found.append(f"{below} of {len(returns)} returns lie below the constants' minimum {low:g}")
    return found


def _uneven(episodes: int, starts: int) -> list[str]:
    """Return a warning if fixed starts, which are taken in turn, were not played equally often."""
    if starts == 0 or episodes % starts == 0:
        return []
    which = f"only the first {episodes}" if episodes < starts else "some more often than others"
    told = f"of the {starts} fixed starts the {episodes} episodes play {which}, and the mean is theirs"
    return [f"{told}; play a multiple of {starts}"]
