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
    waiting = enumerate(starts)
    free: list[Slot] = []
    busy: list[Slot] = []
    made = 0
    failures: dict[int, Failure] | None = {} if forgiving else None
    try:
        while True:
            while len(busy) < slots and (item := next(waiting, None)) is not None:
                if not free:
                    free.append(Slot(make_env(), made))
                    made += 1
                slot = free.pop()
                error = _begin(slot, *item, make_env, forgiving)
                if error is not None:
                    yield slot.order, _broken_off(slot, task, error)
                    free.append(slot)
                else:
                    busy.append(slot)
            if not busy:
                return
            still: list[Slot] = []
            replies = policy.act([slot.request() for slot in busy])
            moves = [(slot.index, slot.env, reply.text) for slot, reply in zip(busy, replies, strict=True)]
            turns = step_together(moves, failures)
            for place, (slot, reply, first) in enumerate(zip(busy, replies, turns, strict=True)):
                turn = _again(slot, reply, (failures or {}).pop(place), make_env) if first is None else first
                if isinstance(turn, Exception):
                    yield slot.order, _broken_off(slot, task, turn)
                    free.append(slot)
                    continue
                terminated, truncated = slot.turned(reply, turn)
                if not (terminated or truncated) and stop is not None and stop(slot.request()):
                    truncated = True
                if terminated or truncated:
                    yield slot.order, slot.episode(task, terminated, truncated)
                    free.append(slot)
                else:
                    still.append(slot)
            busy = still
    finally:
        for slot in (*busy, *free):
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
