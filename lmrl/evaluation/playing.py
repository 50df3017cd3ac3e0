"""Play of an evaluation's episodes in this process or in those of a cluster, with the same result."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from lmrl.envs import registry
from lmrl.envs.base import DialogueEnv
from lmrl.errors import UserError
from lmrl.partners import environment
from lmrl.partners.environment import check_budget
from lmrl.rollout import MakeEnv, in_order, rollout
from lmrl.types import Described, Episode, LoadedPolicy, Policy, Resettable, Start
from lmrl.utils.cluster import Workers

__all__ = ["Player", "RayWorkers", "play_on_workers"]

_PIECE = 4
"""So many episodes per slot are played before a policy that remembers begins anew."""


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """Processes of a Ray cluster that are to play."""

    address: str
    """As of `lmrl.utils.cluster.Cluster`: ``local``, ``auto`` or ``HOST:PORT``."""
    count: int | None = None
    """How many; None: as many as the cluster has cores (or GPUs) for."""
    make_policy: Callable[[], LoadedPolicy] | None = None
    """Makes the policy there; it is sent to them. None: `evaluate` is given the name of one."""
    gpu: bool = False
    """Each takes a GPU."""


class Player:
    """A policy that plays starts, in this process or in one of a cluster."""

    def __init__(
        self,
        policy: Policy,
        make_env: MakeEnv,
        task: str,
        slots: int,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> None:
        self._policy = policy
        self._make_env = make_env
        self._task = task
        self._slots = slots
        self._on_episode = on_episode

    def play(self, starts: Sequence[Start]) -> list[Episode]:
        """The episodes of all starts, in their order."""
        pieces = _pieces(starts, self._slots) if self._remembers() else [starts]
        return [episode for piece in pieces for episode in self(piece)]

    def __call__(self, piece: Sequence[Start]) -> list[Episode]:
        """The episodes of a piece, in the order of its starts."""
        found = []
        for order, episode in rollout(self._policy, self._make_env, piece, task=self._task, slots=self._slots):
            found.append((order, episode))
            if self._on_episode is not None:
                self._on_episode(episode)
        return in_order(found)

    def _remembers(self) -> bool:
        """Whether anybody keeps something from one episode to the next; else it does not matter how they are cut."""
        if isinstance(self._policy, Resettable):
            return True
        if registry.task(self._task).partner is None:
            return False
        with closing(self._make_env()) as env:
            return isinstance(env, DialogueEnv) and isinstance(env.partner, Resettable)


def _pieces(starts: Sequence[Start], slots: int) -> list[Sequence[Start]]:
    size = _PIECE * slots
    return [starts[first : first + size] for first in range(0, len(starts), size)]


def _worker(
    make_policy: Callable[[], LoadedPolicy], task: str, env: Mapping[str, Any] | None, slots: int
) -> Callable[[Sequence[Start]], list[Episode]]:
    """Return the player of a process of a cluster."""
    return Player(make_policy().policy, environment(task, env), task, slots)


def play_on_workers(
    ray: RayWorkers,
    policy: Policy,
    task: str,
    env: Mapping[str, Any] | None,
    starts: Sequence[Start],
    slots: int,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """The episodes of all starts, in their order, played by processes of a Ray cluster.

    Args:
        ray: which ones.
        policy: the one that they make, as this process has made it.
        task: name of the task.
        env: arguments of the environment.
        starts: of the episodes.
        slots: environments side by side, in each process.
        on_episode: called with each episode, in their order.

    Raises:
        UserError: other processes cannot make the policy; a partner has a budget, of which each would have the whole;
            and as `lmrl.utils.cluster.Workers`.
    """
    if ray.make_policy is None or isinstance(policy, Described):
        raise UserError(
            "ray needs a policy that other processes can make: a run, a checkpoint or a scripted player by its name, "
            f"got {type(policy).__name__}"
        )
    check_budget((env or {}).get("partner"), 2 if ray.count is None else ray.count)
    make = partial(_worker, ray.make_policy, task, env, slots)
    found = list[Episode]()
    workers: Workers[Sequence[Start], list[Episode]] = Workers(ray.address, ray.count, make, gpu=ray.gpu)
    with workers:
        pieces = _pieces(starts, slots)
        if len(pieces) < min(workers.count, len(starts)):
            warnings.warn(
                f"{workers.count} workers have {len(pieces)} pieces of {_PIECE * slots} episodes to play: fewer slots "
                "make more pieces",
                stacklevel=2,
            )
        for played in workers.map(pieces):
            for episode in played:
                found.append(episode)
                if on_episode is not None:
                    on_episode(episode)
    return found
