"""One environment and the episode that it is playing."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium

from lmrl.envs.together import Step
from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.protocols import Reply, Request

__all__ = ["MakeEnv", "Slot", "Start", "TextEnv"]

TextEnv: TypeAlias = "gymnasium.Env[str, str]"
MakeEnv: TypeAlias = Callable[[], TextEnv]


@dataclass(frozen=True, slots=True)
class Start:
    """How an episode begins: its seed and the options handed to ``reset``."""

    seed: int
    options: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Slot:
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
        self.observations, self.replies, self.rewards, self.info = [""], [], [], {}
        self.observations[0], self.info = self._reset()

    def _reset(self) -> tuple[str, dict[str, Any]]:
        options, seed = self.start.options, self.start.seed
        text, info = self.env.reset(seed=seed, options=None if options is None else dict(options))
        if not text:
            raise UserError(
                f"{type(self.env).__name__} begins the episode with seed {seed} with an empty text: an environment has "
                "to say something before the first action (lmrl check-env tests it)"
            )
        return text, info

    def request(self) -> Request:
        return Request(
            slot=self.index,
            seed=self.start.seed,
            observations=self.observations,
            actions=[reply.text for reply in self.replies],
            action_ids=[reply.ids for reply in self.replies],
            info=self.info,
        )

    def renew(self, make_env: MakeEnv) -> None:
        """A new environment, brought to where the old one was.

        Raises:
            UserError: it does not say again what the old one said.
        """
        with suppress(Exception):  # it has failed already
            self.env.close()
        self.env = make_env()
        text, self.info = self._reset()
        for turn, reply in enumerate(self.replies):
            if text != self.observations[turn]:
                raise UserError(f"the environment does not repeat itself: turn {turn} of seed {self.start.seed}")
            text, _, _, _, self.info = self.env.step(reply.text)
        self.observations[-1] = text  # differs where there was none yet

    def turned(self, reply: Reply, turn: Step) -> tuple[bool, bool]:
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
