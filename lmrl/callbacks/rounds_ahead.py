"""Rounds that are played in the background, while the trainer learns from earlier ones."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple

from torch import Tensor

from lmrl.callbacks.round_workers import WeightsSnapshot
from lmrl.rollout import Piece

__all__ = ["PlayedRound", "RoundsAhead", "pack_snapshots", "unpack_snapshots"]


class PlayedRound(NamedTuple):
    """A round that was played in the background."""

    pieces: list[Piece]
    step: int
    """Optimizer step of the weights that played it."""
    seconds: float
    """Time that it took to play."""
    idle: float
    """Seconds before it in which the players had no round to play."""


class RoundsAhead:
    """Plays rounds one after the other in a thread of its own, each with the weights with which it was begun.

    Args:
        play: returns the pieces of the round of a number. It is called in the thread, and may take long.
    """

    def __init__(self, play: Callable[[int, WeightsSnapshot], list[Piece]]) -> None:
        self._play = play
        self._orders: SimpleQueue[tuple[int, WeightsSnapshot] | None] = SimpleQueue()
        #: The weights of each round that has begun, by its number.
        self.weights: dict[int, WeightsSnapshot] = {}
        self._rounds: dict[int, Future[PlayedRound]] = {}
        self._is_closed = False
        self._free_since = perf_counter()
        # A daemon: it may wait for a server that no longer answers, and must not keep the program from its end.
        self._thread = Thread(target=self._work, name="rounds ahead", daemon=True)
        self._thread.start()

    def __contains__(self, number: int) -> bool:
        """Whether the round of a number has begun."""
        return number in self._rounds

    def begin(self, number: int, weights: WeightsSnapshot) -> None:
        """Have a round played after those that have begun already."""
        self.weights[number] = weights
        self._rounds[number] = Future()
        self._orders.put((number, weights))

    def ready(self) -> int:
        """Return how many rounds have been played and wait to be learned from."""
        return sum(future.done() for future in self._rounds.values())

    def take(self, number: int) -> PlayedRound:
        """Wait for a round, and return it; what it raised is raised here. It stays until `forget`."""
        return self._rounds[number].result()

    def forget(self, number: int) -> None:
        """Drop all rounds before that of a number."""
        for earlier in [one for one in self._rounds if one < number]:
            del self._rounds[earlier]
            del self.weights[earlier]

    def close(self) -> None:
        """Begin no other round. One that is being played goes on for its time, unless its players are ended."""
        self._is_closed = True
        self._orders.put(None)

    def _work(self) -> None:
        while True:
            order = self._orders.get()
            if order is None or self._is_closed:
                return
            number, weights = order
            began = perf_counter()
            idle = began - self._free_since
            future = self._rounds[number]
            try:
                pieces = self._play(number, weights)
            except BaseException as error:
                future.set_exception(error)
                continue
            self._free_since = perf_counter()
            future.set_result(PlayedRound(pieces, weights.step, self._free_since - began, idle))


def pack_snapshots(under_way: Mapping[int, WeightsSnapshot], after: int) -> dict[str, Any]:
    """Return what a checkpoint holds of rounds under way: with their weights a resumed run plays the same ones.

    Args:
        under_way: the weights of each round, by its number.
        after: the number of the last round that is not needed any more.
    """
    steps: dict[str, int] = {}
    tensors: dict[str, dict[str, Tensor]] = {}
    for number, weights in under_way.items():
        if number > after:
            steps[str(number)] = weights.step
            tensors[str(weights.step)] = weights.tensors
    return {"steps": steps, "weights": tensors}


def unpack_snapshots(state: Mapping[str, Any]) -> dict[int, WeightsSnapshot]:
    """Return the weights of each round in what `pack_snapshots` has returned."""
    return {int(number): WeightsSnapshot(step, state["weights"][str(step)]) for number, step in state["steps"].items()}
