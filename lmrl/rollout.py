"""The only loop in which a policy meets environments: many at once, each slot refilled as soon as it is free."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from lmrl.envs.together import Failure, Step, step_together
from lmrl.episode import Episode
from lmrl.protocols import Policy, Reply, Request
from lmrl.slot import MakeEnv, Slot, Start

__all__ = ["Start", "episode_seed", "in_order", "rollout"]


def episode_seed(*key: int) -> int:
    """31 bits that differ between neighbouring keys: seed 1 is not seed 0 moved on by one episode."""
    return int(np.random.SeedSequence(key).generate_state(1)[0] >> 1)


def rollout(
    policy: Policy,
    make_env: MakeEnv,
    starts: Iterable[Start],
    *,
    task: str,
    slots: int = 32,
    stop: Callable[[Request], bool] | None = None,
    forgiving: bool = False,
) -> Iterator[tuple[int, Episode]]:
    """Play one episode per start and yield ``(index of the start, episode)`` as episodes finish.

    Args:
        policy: asked once per round for all waiting environments.
        make_env: makes one environment; called at most ``slots`` times, and once more for each that fails.
        starts: seeds and reset options, consumed lazily, so it may be endless.
        task: name written into the episodes.
        slots: how many environments play side by side.
        stop: a recorder's own rule: an episode for which it says yes ends there as truncated.
        forgiving: what an environment or second speaker raises is not handed on: it is tried once more (an environment
            anew, brought to the same point), and if it fails again, the episode ends after its last observation as
            truncated, with the message as ``info["error"]``. An episode that could not begin has no turn.
    """
    table = _Table(make_env, enumerate(starts), slots, task, forgiving)
    try:
        while True:
            yield from table.fill()
            if not table.busy:
                return
            yield from table.play(policy, stop)
    finally:
        table.close()


class _Table:
    """The slots of a rollout: those with an episode in it, and those that are free."""

    def __init__(
        self, make_env: MakeEnv, waiting: Iterator[tuple[int, Start]], slots: int, task: str, forgiving: bool
    ) -> None:
        self._make_env, self._waiting, self._slots, self._task = make_env, waiting, slots, task
        self._failures: dict[int, Failure] | None = {} if forgiving else None
        self._all: list[Slot] = []
        self._free: list[Slot] = []
        self.busy: list[Slot] = []

    def fill(self) -> Iterator[tuple[int, Episode]]:
        """Begin episodes until all slots are busy; those that cannot begin have ended."""
        while len(self.busy) < self._slots and (item := next(self._waiting, None)) is not None:
            slot = self._free.pop() if self._free else self._new()
            error = _begin(slot, *item, self._make_env, self._failures is not None)
            (self.busy if error is None else self._free).append(slot)
            if error is not None:
                yield slot.order, _broken_off(slot, self._task, error)

    def _new(self) -> Slot:
        self._all.append(Slot(self._make_env(), len(self._all)))
        return self._all[-1]

    def play(self, policy: Policy, stop: Callable[[Request], bool] | None) -> list[tuple[int, Episode]]:
        """One turn in every busy slot; the episodes that it has ended."""
        replies = policy.act([slot.request() for slot in self.busy])
        moves = [(slot.index, slot.env, reply.text) for slot, reply in zip(self.busy, replies, strict=True)]
        turns = step_together(moves, self._failures)
        ended, still = [], []
        for place, (slot, reply, first) in enumerate(zip(self.busy, replies, turns, strict=True)):
            turn = _again(slot, reply, (self._failures or {}).pop(place), self._make_env) if first is None else first
            episode = self._after(slot, reply, turn, stop)
            if episode is None:
                still.append(slot)
            else:
                self._free.append(slot)
                ended.append((slot.order, episode))
        self.busy = still
        return ended

    def _after(
        self, slot: Slot, reply: Reply, turn: Step | Exception, stop: Callable[[Request], bool] | None
    ) -> Episode | None:
        """The episode, if this turn was its last."""
        if isinstance(turn, Exception):
            return _broken_off(slot, self._task, turn)
        terminated, truncated = slot.turned(reply, turn)
        if not (terminated or truncated) and stop is not None and stop(slot.request()):
            truncated = True
        return slot.episode(self._task, terminated, truncated) if terminated or truncated else None

    def close(self) -> None:
        """Close every environment."""
        for slot in self._all:
            slot.env.close()


def _begin(slot: Slot, order: int, start: Start, make_env: MakeEnv, forgiving: bool) -> Exception | None:
    try:
        slot.begin(order, start)
    except Exception:
        if not forgiving:
            raise
        try:
            slot.renew(make_env)
        except Exception as error:
            return error
    return None


def _again(slot: Slot, reply: Reply, failure: Failure, make_env: MakeEnv) -> Step | Exception:
    """The turn that failed, played again by a new environment; or why there is none."""
    if failure.by_partner:
        return failure.error
    try:
        slot.renew(make_env)
        return slot.env.step(reply.text)
    except Exception as error:
        return error


def _broken_off(slot: Slot, task: str, error: Exception) -> Episode:
    slot.info["error"] = f"{type(error).__name__}: {error}"
    return slot.episode(task, terminated=False, truncated=True)


def in_order(results: Iterable[tuple[int, Episode]]) -> list[Episode]:
    """All episodes of a rollout, in the order of their starts."""
    return [episode for _, episode in sorted(results, key=lambda item: item[0])]
