"""The entropy of the behaviour policy's actions: the loss of a perfect clone, and so the floor of behavioural cloning.

A scripted policy makes its random decisions with a generator (`lmrl.envs.task.turn_chance`). This module replaces the
generator by one that takes every branch in turn and tracks its probability, which gives the exact distribution of the
actions. Draws that hold for a whole episode, such as the skill, are known here but not to a model: then the floor is a
lower bound.
"""

import math
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, NamedTuple

import numpy as np

from lmrl.data.recording import recording_setup
from lmrl.envs.task import BranchingRandom
from lmrl.errors import UserError, check_range
from lmrl.rollout import rollout
from lmrl.types import Policy, Reply, Request

__all__ = ["Entropy", "action_distribution", "entropy_floor"]

_SHUFFLES = 8  # orders that stand for all of them; policies shuffle to choose among equals
_LEAVES = 100_000  # limit of the paths of decisions on one turn


class _Decision(float):
    """A uniform number that is not drawn until it is compared."""

    chance: "_Branch"

    def __lt__(self, other: float) -> bool:
        # "random() < p" is a decision between two branches with the probabilities 1 - p and p.
        probability = min(1.0, max(0.0, other))
        return self.chance.decide((1 - probability, probability)) == 1


class _Branch(BranchingRandom):
    """A generator that follows a path of decisions, and after its end takes the first possible branch."""

    def __init__(self, path: Sequence[int], known: dict[tuple[int, ...], list[float]]) -> None:
        super().__init__(0)
        self.path = list(path)
        self.weights = list[Sequence[float]]()
        self._known = known  # cache of `least_of` by the path to it
        self.probability = 1.0

    def decide(self, weights: Sequence[float]) -> int:
        """Return the branch that the current path takes."""
        depth = len(self.weights)
        self.weights.append(weights)
        if depth == len(self.path):
            self.path.append(next(branch for branch, weight in enumerate(weights) if weight > 0))
        self.probability *= weights[self.path[depth]] / sum(weights)
        return self.path[depth]

    def following(self) -> list[int] | None:
        """The next path in depth-first order, None after the last."""
        # Back up from the end of the path to the last decision with another possible branch.
        for depth in range(len(self.weights) - 1, -1, -1):
            for branch in range(self.path[depth] + 1, len(self.weights[depth])):
                if self.weights[depth][branch] > 0:
                    return [*self.path[:depth], branch]
        return None

    def random(self) -> float:
        """See `_Decision`."""
        number = _Decision("nan")
        number.chance = self
        return number

    def choice(self, seq: Any) -> Any:
        """One of several with equal probabilities."""
        return seq[self.decide((1.0,) * len(seq))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """One of the numbers of a range with equal probabilities."""
        numbers = range(start) if stop is None else range(start, stop, step)
        return numbers[self.decide((1.0,) * len(numbers))]

    def choices(
        self,
        population: Any,
        weights: Sequence[Any] | None = None,
        *,
        cum_weights: Sequence[Any] | None = None,
        k: int = 1,
    ) -> list[Any]:
        """Draws by weight, one after the other."""
        if cum_weights is not None:
            weights = np.diff(cum_weights, prepend=0).tolist()
        return [population[self.decide(weights or (1.0,) * len(population))] for _ in range(k)]

    def least_of(
        self, population: Sequence[Any], cum_weights: Sequence[float], k: int, key: Callable[[Any], float]
    ) -> Any:
        """Decide like `lmrl.envs.task.least_of` in one step, by each member's probability of being the least of k."""
        path = tuple(self.path[: len(self.weights)])
        if path not in self._known:
            weights = np.diff(cum_weights, prepend=0).tolist()
            self._known[path] = _chances_of_least(weights, k, list(map(key, population)))
        return population[self.decide(self._known[path])]

    def shuffle(self, x: MutableSequence[Any]) -> None:  # type: ignore[override]
        """One of `_SHUFFLES` orders."""
        Random(f"order {self.decide((1.0,) * _SHUFFLES)}").shuffle(x)


def _chances_of_least(weights: Sequence[float], k: int, keys: Sequence[float]) -> list[float]:
    """Return the probability of each member to have the least key among `k` draws; of equals the first draw counts."""
    chances = [0.0] * len(keys)
    total = sum(weights)
    above = 0.0  # weight of all larger keys
    for value in sorted(set(keys), reverse=True):
        equal = [index for index, other in enumerate(keys) if other == value]
        weight = sum(weights[index] for index in equal)
        # All k draws have at least this key, but not all have a larger one.
        share = ((above + weight) / total) ** k - (above / total) ** k
        for index in equal:
            chances[index] = share * weights[index] / weight
        above += weight
    return chances


def action_distribution(player: Policy, request: Request) -> dict[str, float]:
    """Return the probability of each action of a scripted policy.

    Args:
        player: a policy that draws only from `lmrl.envs.task.turn_chance`.
        request: the state in which it acts.

    Raises:
        UserError: if there are too many combinations of decisions.
    """
    distribution: dict[str, float] = {}
    path: list[int] = []
    known: dict[tuple[int, ...], list[float]] = {}
    for _ in range(_LEAVES):
        branch = _Branch(path, known)
        (reply,) = player.act([replace(request, chance=branch)])
        # Several paths may lead to the same action.
        distribution[reply.text] = distribution.get(reply.text, 0.0) + branch.probability
        following = branch.following()
        if following is None:
            return distribution
        path = following
    raise UserError(f"{type(player).__name__} decides in more than {_LEAVES} ways on one turn")


class _Weighed:
    """Acts like the behaviour policy, and keeps the entropy of each action by the seed of the episode."""

    def __init__(self, player: Policy) -> None:
        self._player = player
        self.entropies = dict[int, list[float]]()

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        for request in requests:
            chances = action_distribution(self._player, request).values()
            entropy = -sum(p * math.log(p) for p in chances if p > 0)
            self.entropies.setdefault(request.seed, []).append(entropy)
        return self._player.act(requests)


class Entropy(NamedTuple):
    """The entropy of the behaviour policy's actions, in nats."""

    mean: float
    """Mean over the states that the policy visits."""
    by_episode: tuple[float, ...]
    """The contribution of each episode; their mean is ``mean``. States of one episode are correlated, so an interval
    must use the spread of these and the number of episodes."""
    actions: int
    """Number of states."""


def entropy_floor(task_name: str, env: Mapping[str, Any] | None = None, episodes: int = 64, seed: int = 0) -> Entropy:
    """Compute the mean entropy of the behaviour policy's actions over the states that it visits.

    Args:
        task_name: name of a task whose dataset a scripted policy records.
        env: arguments of the environment.
        episodes: number of episodes.
        seed: seed of the dataset; the episodes are the first ones of that dataset.

    Raises:
        UserError: see `action_distribution`; and for fewer than two episodes.
    """
    check_range("[2, inf)", episodes=episodes)
    check_range("[0, inf)", seed=seed)
    recipe, make = recording_setup(task_name, env or {})
    weighed = _Weighed(recipe.policy)
    starts: Iterable[Any] = map(partial(recipe.start, seed), range(episodes))
    for _ in rollout(weighed, make, starts, task=task_name, stop=recipe.stop):
        pass
    # One entry per episode: the sum of its entropies, and its number of actions.
    sums = np.asarray(list(map(math.fsum, weighed.entropies.values())))
    actions = np.asarray(list(map(len, weighed.entropies.values())))
    mean = float(sums.sum() / actions.sum())
    # The mean is a ratio of two means; linearised, it is a mean over episodes (Cochran 1977, section 2.11).
    by_episode = mean + (sums - mean * actions) / actions.mean()
    return Entropy(mean, tuple(by_episode.tolist()), int(actions.sum()))
