"""The entropy of a recorder's actions: the loss of a perfect clone, and so the floor of behavioural cloning.

A scripted player decides by a generator (`lmrl.envs.task.turn_chance`). Here it is given one that takes every branch in
turn and keeps the probability of each, so that the distribution of its actions is exact, whatever the player. What a
player draws once for a whole episode, such as its skill, is known to this calculation but not to a model: then the
floor is a lower bound.
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

_SHUFFLES = 8
"""Orders that are tried in place of all; players shuffle to choose among equals."""
_LEAVES = 100_000
"""Paths of decisions on one turn, at most."""


class _Decision(float):
    """A uniform number that is not drawn until it is compared."""

    chance: "_Branch"

    def __lt__(self, other: float) -> bool:
        return self.chance.decide((1 - min(1.0, max(0.0, other)), min(1.0, max(0.0, other)))) == 1


class _Branch(BranchingRandom):
    """A generator that follows a path of decisions, and beyond it takes the first of each that has a probability."""

    def __init__(self, path: Sequence[int], known: dict[tuple[int, ...], list[float]]) -> None:
        super().__init__(0)
        self.path = list(path)
        self.weights = list[Sequence[float]]()
        self._known = known  # what was reckoned before, by the path to it
        self.probability = 1.0

    def decide(self, weights: Sequence[float]) -> int:
        """Return the branch that the current path takes among several."""
        at = len(self.weights)
        self.weights.append(weights)
        if at == len(self.path):
            self.path.append(next(i for i, weight in enumerate(weights) if weight > 0))
        self.probability *= weights[self.path[at]] / sum(weights)
        return self.path[at]

    def following(self) -> list[int] | None:
        """The next path in order, None after the last."""
        for at in range(len(self.weights) - 1, -1, -1):
            for choice in range(self.path[at] + 1, len(self.weights[at])):
                if self.weights[at][choice] > 0:
                    return [*self.path[:at], choice]
        return None

    def random(self) -> float:
        """See `_Decision`."""
        number = _Decision("nan")
        number.chance = self
        return number

    def choice(self, seq: Any) -> Any:
        """One of several, each as probable."""
        return seq[self.decide((1.0,) * len(seq))]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        """One of the numbers of a range."""
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
        """Each by its weight, one after the other."""
        if cum_weights is not None:
            weights = _differences(cum_weights)
        return [population[self.decide(weights or (1.0,) * len(population))] for _ in range(k)]

    def least_of(
        self, population: Sequence[Any], cum_weights: Sequence[float], k: int, key: Callable[[Any], float]
    ) -> Any:
        """Decide like `lmrl.envs.task.least_of`, in one step, by each member's probability of being the least of k."""
        here = tuple(self.path[: len(self.weights)])
        if here not in self._known:
            self._known[here] = _chances_of_least(_differences(cum_weights), k, [key(item) for item in population])
        return population[self.decide(self._known[here])]

    def shuffle(self, x: MutableSequence[Any]) -> None:  # type: ignore[override]
        """One of some orders."""
        Random(f"order {self.decide((1.0,) * _SHUFFLES)}").shuffle(x)


def _differences(sums: Sequence[float]) -> list[float]:
    return [high - low for low, high in zip((0, *sums), sums, strict=False)]


def _chances_of_least(weights: Sequence[float], k: int, keys: Sequence[float]) -> list[float]:
    """The probability with which each is the one of least key among `k` drawn; of equals the first drawn."""
    chances = [0.0] * len(keys)
    whole = sum(weights)
    beyond = 0.0
    for value in sorted(set(keys), reverse=True):
        equal = [at for at, other in enumerate(keys) if other == value]
        here = sum(weights[at] for at in equal)
        share = ((beyond + here) / whole) ** k - (beyond / whole) ** k
        for at in equal:
            chances[at] = share * weights[at] / here
        beyond += here
    return chances


def action_distribution(player: Policy, request: Request) -> dict[str, float]:
    """The probability of each action of a scripted player.

    Args:
        player: draws from `lmrl.envs.task.turn_chance` alone.
        request: where it acts.

    Raises:
        UserError: it decides in more ways than can be tried.
    """
    found: dict[str, float] = {}
    path: list[int] = []
    known: dict[tuple[int, ...], list[float]] = {}
    for _ in range(_LEAVES):
        branch = _Branch(path, known)
        (reply,) = player.act([replace(request, chance=branch)])
        found[reply.text] = found.get(reply.text, 0.0) + branch.probability
        following = branch.following()
        if following is None:
            return found
        path = following
    raise UserError(f"{type(player).__name__} decides in more than {_LEAVES} ways on one turn")


class _Weighed:
    """Plays as the recorder does, and keeps the entropy of each of its actions, by the seed of the episode."""

    def __init__(self, player: Policy) -> None:
        self._player = player
        self.entropies = dict[int, list[float]]()

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        """Return the player's action."""
        for request in requests:
            chances = action_distribution(self._player, request).values()
            entropy = -sum(p * math.log(p) for p in chances if p > 0)
            self.entropies.setdefault(request.seed, []).append(entropy)
        return self._player.act(requests)


class Entropy(NamedTuple):
    """The entropy of a recorder's actions, in nats."""

    mean: float
    """Over the states that it comes to."""
    by_episode: tuple[float, ...]
    """What each episode says of that mean, which is also theirs. States of one episode are alike, so an interval has to
    go by the spread of these and by the number of episodes."""
    actions: int
    """Number of states."""


def entropy_floor(task_name: str, env: Mapping[str, Any] | None = None, episodes: int = 64, seed: int = 0) -> Entropy:
    """Mean entropy of an action of the recorder over the states that it comes to.

    Args:
        task_name: name of a task whose dataset a scripted player records.
        env: arguments of the environment.
        episodes: how many are played.
        seed: of the dataset; its first episodes are these.

    Raises:
        UserError: as `action_distribution`, and for fewer than two episodes.
    """
    check_range("[2, inf)", episodes=episodes)
    recipe, make = recording_setup(task_name, env or {})
    weighed = _Weighed(recipe.policy)
    starts: Iterable[Any] = map(partial(recipe.start, seed), range(episodes))
    for _ in rollout(weighed, make, starts, task=task_name, stop=recipe.stop):
        pass
    sums = np.asarray([math.fsum(its) for its in weighed.entropies.values()])
    actions = np.asarray([len(its) for its in weighed.entropies.values()])
    mean = float(sums.sum() / actions.sum())
    # A ratio of two means, to first order a mean of these (Cochran 1977, "Sampling Techniques", 2.11).
    by_episode = mean + (sums - mean * actions) / actions.mean()
    return Entropy(mean, tuple(by_episode.tolist()), int(actions.sum()))
