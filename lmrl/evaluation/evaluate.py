"""Evaluate a policy on a task: run its episodes, here or on a Ray cluster with the same result, and score them."""

import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from os import PathLike, fspath
from typing import Any

import numpy as np

from lmrl.envs import registry
from lmrl.envs.base import DialogueEnv
from lmrl.envs.registry import register_where_unknown
from lmrl.envs.scores import Scores, normalize
from lmrl.envs.task import Task
from lmrl.errors import UserError, check_range, counted
from lmrl.evaluation.episode_table import EpisodeTable
from lmrl.evaluation.intervals import bootstrap_mean, wilson
from lmrl.evaluation.loading import PolicySpec, TrainedModule, load_policy, module_task, task_of
from lmrl.partners import environment
from lmrl.partners.environment import check_budget
from lmrl.rollout import MakeEnv, evaluation_seed, in_order, pieces_of, rollout
from lmrl.types import Described, Episode, LoadedPolicy, Policy, Resettable, Start, unwrapped
from lmrl.utils.cluster import Workers
from lmrl.utils.distributed import map_over_ranks

__all__ = ["Evaluation", "RayWorkers", "default_episodes", "evaluate", "versions"]

_MIN_EPISODES = 256
"""The least number of episodes of an evaluation, by default."""

_SLOTS = 32
"""Environments that run in parallel where the policy has no number of its own."""

_EPISODES_PER_SLOT = 4
"""Episodes per slot between two resets of policies and partners that keep what they have read."""


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """Processes of a Ray cluster that run episodes."""

    address: str
    """See `lmrl.utils.cluster.Cluster`: ``local``, ``auto`` or ``HOST:PORT``."""
    count: int | None = None
    """Number of processes; None: as many as the cluster has cores (or GPUs) for."""
    make_policy: Callable[[], LoadedPolicy] | None = None
    """Makes the policy in each process, to which it is sent; None: `evaluate` gets the name of a policy."""
    gpu: bool = False
    """Whether each process takes a GPU."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes of a policy, and the scores that follow from them."""

    task: str
    policy: str
    """Its name in tables."""
    episodes: tuple[Episode, ...]
    """In the order of their starts."""
    seed: int
    starts: int = 0
    """Number of fixed starts, which the episodes took in turn; 0: seeds decided how episodes begin."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What the result was made with: decoding settings, dataset, opponent, versions. JSON-like."""

    def __repr__(self) -> str:
        """One line, without the episodes."""
        mean = f"mean return {EpisodeTable.of(self.episodes).means()['return_mean']:.2f}" if self.episodes else "empty"
        played = counted(len(self.episodes), "episode")
        return f"<Evaluation of {self.policy} on {self.task}: {played}, seed {self.seed}, {mean}>"

    def scores(self) -> dict[str, Any]:
        """Return the content of ``scores.json``.

        - ``return_mean`` is undiscounted. ``return_ci`` is its 95 % percentile bootstrap interval over episodes; where
          there are fixed ``starts``, each episode is resampled among those of its start. ``normalized`` and
          ``normalized_ci`` are the same on the published scale.
        - ``own`` and ``own_ci`` are on the task's own scale (`lmrl.envs.scores.OwnScale`). They are None for a task
          without one, and where arguments have changed the environment.
        - ``success_ci`` is Wilson's interval, as if starts were drawn too.
        - ``illegal_rate`` is the share of actions that the rules did not accept.
        - ``warnings`` names values outside of the task's published constants (nothing is clipped; other arguments of
          the environment have none), says if there are no constants, whether fixed starts were not played equally
          often, and whether a single episode was played.
        """
        task = registry.task(self.task)
        published = task.scores
        # An environment with other settings is another game, which no scale of the task measures.
        is_own_game = not self.provenance.get("env")
        own_scale = task.own_scale if is_own_game else None
        table = EpisodeTable.of(self.episodes)
        returns = table.returns.tolist()
        means = table.means()
        strata = (np.arange(len(returns)) % self.starts).tolist() if self.starts else None
        interval = bootstrap_mean(returns, strata=strata)
        return {
            "task": self.task,
            "policy": self.policy,
            "episodes": len(self.episodes),
            "return_mean": means["return_mean"],
            "return_ci": list(interval),
            "normalized": normalize(means["return_mean"], published),
            "normalized_ci": [normalize(end, published) for end in interval],
            "own": None if own_scale is None else normalize(means["return_mean"], own_scale),
            "own_ci": None if own_scale is None else [normalize(end, own_scale) for end in interval],
            "success_rate": means["success_rate"],
            "success_ci": list(wilson(int(table.successes.sum()), len(self.episodes))),
            "length_mean": means["length_mean"],
            "illegal_rate": means["illegal_rate"],
            "seed": self.seed,
            "starts": self.starts,
            "warnings": [
                *(_warnings(returns, published) if is_own_game else ()),
                *_uneven(len(returns), self.starts),
                *_single(len(returns)),
            ],
            "provenance": dict(self.provenance),
        }


def evaluate(
    policy: Policy | LoadedPolicy | TrainedModule | str | PathLike[str],
    task: str | None = None,
    episodes: int | None = None,
    seed: int = 0,
    slots: int | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    *,
    on_turns: Callable[[int], None] | None = None,
    finished: Sequence[Episode] = (),
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

    Episode ``i`` begins at start ``i`` of `lmrl.envs.registry.starts` (cyclically, where there are any) with a seed
    that follows from `seed` and ``i`` alone. The result therefore does not depend on `slots`, except for the last bits
    of log-probabilities. Policies and partners that keep what they have read are reset after every ``4 * slots``
    episodes. Workers of a Ray cluster get pieces of the same size, so their result is, byte for byte, that of one
    process.

    Args:
        policy: a policy, the result of `lmrl.load_policy`, a module in memory, or a name as in
            ``lmrl evaluate --policy``: a run folder, a checkpoint, ``random``, ...
        task: name of a task, one of `lmrl.tasks()`; None: the one that a run, checkpoint or module was trained on.
        episodes: number of episodes, at least one; None: `default_episodes`.
        seed: seed of the evaluation.
        slots: number of environments that run in parallel; None: 32, for a language model on a GPU up to 256.
        on_episode: called with each episode when it ends (for progress bars).
        on_turns: called with the number of turns that were played since the last call, as they are played; on a
            cluster as episodes arrive.
        finished: episodes of an evaluation with the same arguments that was interrupted. They are not played again.
        name: name of the policy in tables; None: its name, or that of its class.
        provenance: further facts for `Evaluation.provenance`, JSON-like.
        env: arguments of the environment, as for `lmrl.make`; ``partner`` may be a name (see `lmrl.partners`).
        together: share the episodes among the processes that train together. All of them have to call, and all get
            the same result as one process alone.
        selection: evaluate to choose a checkpoint or settings. It uses the starts that the task keeps for that
            (`Task.selection`) and seeds that no other evaluation has, so that the choice does not see the reported
            games.
        allow_other_task: let a run or checkpoint play another task than the one that it was trained on.
        ray: run the episodes in processes of a Ray cluster.

    Raises:
        UserError: an unknown task or policy, none named, a run of another task, fewer than one episode or slot, or a
            negative seed; with `ray` also a policy that other processes cannot make, `together`, and as
            `lmrl.utils.cluster.Workers`.
    """
    # A name is resolved here and, for a cluster, once more in each worker.
    if isinstance(policy, str | PathLike):
        spec = PolicySpec.parse(fspath(policy), task)
        task_record = spec.task
        settings: dict[str, Any] = {"allow_other_task": True} if allow_other_task else {}
        load = partial(spec.load, env, **settings)
        policy_facts: dict[str, Any] = {"policy": spec.name}
        if spec.published_settings:
            policy_facts["decoding"] = dict(spec.published_settings)
        provenance = {**policy_facts, **(provenance or {})}
        if ray is not None and ray.make_policy is None:
            ray = replace(ray, make_policy=load)
        name = name or spec.name
        loaded = load()
    else:
        name = name or type(unwrapped(policy)).__name__
        task_record = task_of([], task or module_task(policy))
        loaded = load_policy(policy, task_record)
    task = task_record.name
    episodes = default_episodes(task, env, selection) if episodes is None else episodes
    slots = getattr(unwrapped(loaded.policy), "slots", _SLOTS) if slots is None else slots
    check_range("[1, inf)", episodes=episodes, slots=slots)
    check_range("[0, inf)", seed=seed)
    fixed_starts = registry.starts(task, env, selection=selection)
    starts = _starts_of(fixed_starts, episodes, seed, selection)

    # Play the episodes that are not finished yet.
    finished_by_seed = {episode.seed: episode for episode in finished}
    unplayed_indices = [index for index, start in enumerate(starts) if start.seed not in finished_by_seed]
    to_play = [starts[index] for index in unplayed_indices]
    if ray is not None:
        if together:
            raise UserError("ray must be left out where processes that train together share the episodes")
        new_episodes = _run_on_workers(ray, loaded.policy, task, env, to_play, slots, on_episode, on_turns)
    else:
        run = _Runner(loaded.policy, environment(task, env), task, slots, on_episode, on_turns).run
        new_episodes = map_over_ranks(to_play, run) if together else run(to_play)
    new_by_index = dict(zip(unplayed_indices, new_episodes, strict=True))
    played = []
    for index, start in enumerate(starts):
        played.append(new_by_index[index] if index in new_by_index else finished_by_seed[start.seed])

    made_with = _provenance(loaded, env, played[0], selection, len(finished))
    return Evaluation(task, name, tuple(played), seed, len(fixed_starts), {**made_with, **(provenance or {})})


def _starts_of(fixed_starts: Sequence[Mapping[str, Any]], episodes: int, seed: int, selection: bool) -> list[Start]:
    """Return the start of each episode; fixed starts are taken in turn."""
    starts = []
    for index in range(episodes):
        options = fixed_starts[index % len(fixed_starts)] if fixed_starts else None
        starts.append(Start(evaluation_seed(seed, index, selection), options))
    return starts


def _provenance(
    loaded: LoadedPolicy, env: Mapping[str, Any] | None, episode: Episode, selection: bool, num_finished: int
) -> dict[str, Any]:
    """Return what a result was made with, see `Evaluation.provenance`.

    Args:
        loaded: the policy.
        env: arguments of the environment.
        episode: any episode, whose ``info`` may name the opponent and the partner.
        selection: whether the games choose a checkpoint or settings.
        num_finished: number of episodes that an interrupted evaluation had finished.
    """
    made_with: dict[str, Any] = {"versions": versions(), "env": dict(env or {})}
    if isinstance(loaded.policy, Described):
        made_with["player"] = loaded.policy.describe()
    for speaker in ("opponent", "partner"):  # where the game names them
        if speaker in episode.info:
            made_with[speaker] = episode.info[speaker]
    if loaded.weights is not None:
        made_with["weights"] = loaded.weights
    if selection:
        made_with["selection"] = True
    if num_finished:
        made_with["finished_before"] = num_finished  # the counts in `player` leave these episodes out
    return made_with


@dataclass(frozen=True, slots=True)
class _Runner:
    """Runs episodes of a policy, in this process or in a worker of a cluster."""

    policy: Policy
    make_env: MakeEnv
    task: str
    slots: int
    on_episode: Callable[[Episode], None] | None = None
    on_turns: Callable[[int], None] | None = None

    def run(self, starts: Sequence[Start]) -> list[Episode]:
        """Return the episodes of all starts, in their order."""
        if not self._remembers():
            return self.run_piece(starts)
        episodes = []
        for piece in pieces_of(starts, _EPISODES_PER_SLOT * self.slots):
            episodes += self.run_piece(piece)
        return episodes

    def run_piece(self, piece: Sequence[Start]) -> list[Episode]:
        """Return the episodes of a piece, in the order of its starts."""
        ended = []
        episodes = rollout(self.policy, self.make_env, piece, task=self.task, slots=self.slots, on_turns=self.on_turns)
        for order, episode in episodes:
            ended.append((order, episode))
            if self.on_episode is not None:
                self.on_episode(episode)
        return in_order(ended)

    def _remembers(self) -> bool:
        """Whether the policy or the partner keeps something between episodes, so that pieces change the result."""
        if isinstance(self.policy, Resettable):
            return True
        if registry.task(self.task).partner is None:
            return False
        with closing(self.make_env()) as env:
            return isinstance(env, DialogueEnv) and isinstance(env.partner, Resettable)


def _worker(
    make_policy: Callable[[], LoadedPolicy], task: Task, env: Mapping[str, Any] | None, slots: int
) -> Callable[[Sequence[Start]], list[Episode]]:
    """Return the function with which a process of a cluster runs a piece."""
    register_where_unknown(task)
    return _Runner(make_policy().policy, environment(task.name, env), task.name, slots).run_piece


def _run_on_workers(
    ray: RayWorkers,
    policy: Policy,
    task: str,
    env: Mapping[str, Any] | None,
    starts: Sequence[Start],
    slots: int,
    on_episode: Callable[[Episode], None] | None = None,
    on_turns: Callable[[int], None] | None = None,
) -> list[Episode]:
    """Return the episodes of all starts, in their order, run by processes of a Ray cluster.

    Raises:
        UserError: other processes cannot make the policy; a partner has a budget, which each process would use up by
            itself; and as `lmrl.utils.cluster.Workers`.
    """
    if ray.make_policy is None or isinstance(policy, Described):
        raise UserError(
            "ray needs a policy that other processes can make: a run, a checkpoint or a scripted player by its name, "
            f"got {type(policy).__name__}"
        )
    check_budget((env or {}).get("partner"), 2 if ray.count is None else ray.count)
    make = partial(_worker, ray.make_policy, registry.task(task), env, slots)
    episodes = list[Episode]()
    workers: Workers[Sequence[Start], list[Episode]] = Workers(ray.address, ray.count, make, gpu=ray.gpu)
    with workers:
        piece_size = _EPISODES_PER_SLOT * slots
        pieces = pieces_of(starts, piece_size)
        if len(pieces) < min(workers.count, len(starts)):
            warnings.warn(
                f"{workers.count} workers have {len(pieces)} pieces of {piece_size} episodes to play: fewer slots make "
                "more pieces",
                stacklevel=3,
            )
        for piece in workers.map(pieces):  # in the order of the pieces
            episodes += piece
            for episode in piece:
                if on_turns is not None:
                    on_turns(len(episode))
                if on_episode is not None:
                    on_episode(episode)
    return episodes


def default_episodes(task: str, env: Mapping[str, Any] | None = None, selection: bool = False) -> int:
    """Return the default number of episodes: at least 256, and a multiple of the fixed starts.

    Args:
        task: its name.
        env: arguments of the environment.
        selection: whether the games choose a checkpoint or settings; such games may have other starts.

    Raises:
        UserError: as `lmrl.envs.registry.starts`.
    """
    starts = max(1, len(registry.starts(task, env, selection=selection)))
    return starts * math.ceil(_MIN_EPISODES / starts)


def versions() -> dict[str, str]:
    """Return the versions of the packages on which numbers depend."""
    # The metadata of an editable installation keeps an old version, so the package itself is asked.
    versions = {"lmrl": str(sys.modules["lmrl"].__version__)}
    for package in ("torch", "transformers"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _warnings(returns: list[float], published: Scores) -> list[str]:
    if not published.any_scale:
        return ["this task has no published scale, so scores are mean returns"]
    # A mean outside of the published range shows that the task differs from the published one.
    mean = float(np.mean(returns))
    low = published.minimum
    high = published.maximum
    lines = []
    if mean < low:
        lines.append(f"the mean return {mean:.2f} is below {low:g}, the lowest of the published scale")
    elif high is not None and mean > high:
        lines.append(f"the mean return {mean:.2f} is above {high:g}, the highest of the published scale")
    # The maximum is a mean over starts, so single episodes may lie above it; none should be below the minimum.
    below = np.count_nonzero(np.array(returns) < low)
    if below:
        lines.append(f"{below} of {len(returns)} returns are below {low:g}, the lowest of the published scale")
    return lines


def _uneven(episodes: int, starts: int) -> list[str]:
    """Return a warning if fixed starts, which are taken in turn, were not played equally often."""
    if starts == 0 or episodes % starts == 0:
        return []
    if episodes < starts:
        which = f"only the first {episodes} of the {starts} fixed starts were played"
    else:
        which = f"some of the {starts} fixed starts were played more often than others"
    return [f"{which}, and the mean is theirs; play a multiple of {starts}"]


def _single(episodes: int) -> list[str]:
    """Return a warning if there is a single episode, whose resamples are all alike."""
    if episodes > 1:
        return []
    return ["one episode does not say how returns vary, so the interval of the mean has no width; play more"]
