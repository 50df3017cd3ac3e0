"""The only loop in which a policy meets environments: many at once, each slot refilled as soon as it is free."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsFloat, TypeAlias

import gymnasium

from lmrl.envs.dialogue import step_together
from lmrl.episode import Episode
from lmrl.protocols import Policy, Reply, Request

__all__ = ["Start", "in_order", "rollout"]

TextEnv: TypeAlias = "gymnasium.Env[str, str]"


@dataclass(frozen=True, slots=True)
class Start:
    """How an episode begins: its seed and the options handed to ``reset``."""

    seed: int
    options: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Slot:
    """One environment and the episode that it is playing."""

    env: TextEnv
    index: int
    order: int = 0
    start: Start = field(default_factory=lambda: Start(0))
    observations: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)
    illegal: int = 0

    def begin(self, order: int, start: Start) -> None:
        self.order, self.start, self.illegal = order, start, 0
        text, self.info = self.env.reset(
            seed=start.seed, options=None if start.options is None else dict(start.options)
        )
        self.observations, self.replies, self.rewards = [text], [], []

    def request(self) -> Request:
        return Request(
            slot=self.index,
            seed=self.start.seed,
            observations=self.observations,
            actions=[reply.text for reply in self.replies],
            action_ids=[reply.ids for reply in self.replies],
            info=self.info,
        )

    def turned(self, reply: Reply, turn: tuple[str, SupportsFloat, bool, bool, dict[str, Any]]) -> tuple[bool, bool]:
        text, reward, terminated, truncated, self.info = turn
        self.observations.append(text)
        self.replies.append(reply)
        self.rewards.append(float(reward))
        self.illegal += bool(self.info.get("illegal", False))
        return terminated, truncated

    def episode(self, task: str, terminated: bool, truncated: bool) -> Episode:
        sampled, valued = any(reply.ids for reply in self.replies), any(reply.values for reply in self.replies)
        return Episode(
            task=task,
            observations=tuple(self.observations),
            actions=tuple(reply.text for reply in self.replies),
            rewards=tuple(self.rewards),
            terminated=terminated,
            truncated=truncated,
            seed=self.start.seed,
            info={**self.info, "illegal": self.illegal, "success": bool(self.info.get("success", False))},
            action_ids=tuple(reply.ids for reply in self.replies) if sampled else (),
            action_logprobs=tuple(reply.logprobs for reply in self.replies) if sampled else (),
            action_values=tuple(reply.values for reply in self.replies) if valued else (),
        )


def rollout(
    policy: Policy,
    make_env: Callable[[], TextEnv],
    starts: Iterable[Start],
    *,
    task: str,
    slots: int = 32,
    stop: Callable[[Request], bool] | None = None,
) -> Iterator[tuple[int, Episode]]:
    """Play one episode per start and yield ``(index of the start, episode)`` as episodes finish.

    Args:
        policy: asked once per round for all waiting environments.
        make_env: makes one environment; called at most ``slots`` times.
        starts: seeds and reset options, consumed lazily, so it may be endless.
        task: name written into the episodes.
        slots: how many environments play side by side.
        stop: a recorder's own rule: an episode for which it says yes ends there as truncated.
    """
    waiting = enumerate(starts)
    free: list[_Slot] = []
    busy: list[_Slot] = []
    made = 0
    try:
        while True:
            while len(busy) < slots and (item := next(waiting, None)) is not None:
                if not free:
                    free.append(_Slot(make_env(), made))
                    made += 1
                slot = free.pop()
                slot.begin(*item)
                busy.append(slot)
            if not busy:
                return
            still: list[_Slot] = []
            replies = policy.act([slot.request() for slot in busy])
            turns = step_together(
                [(slot.index, slot.env, reply.text) for slot, reply in zip(busy, replies, strict=True)]
            )
            for slot, reply, turn in zip(busy, replies, turns, strict=True):
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


def in_order(results: Iterable[tuple[int, Episode]]) -> list[Episode]:
    """All episodes of a rollout, in the order of their starts."""
    return [episode for _, episode in sorted(results, key=lambda item: item[0])]
