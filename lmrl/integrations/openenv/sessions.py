"""Sessions of a served task: each has an environment of its own, and whatever it is sent is answered.

A request chooses the seed, the start and the action, and nothing else: the server fixes the task and the arguments
of its environment.
"""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from lmrl.envs.base import TextEnv
from lmrl.errors import UserError, check_range, in_one_line, valid_unicode

__all__ = ["Limits", "Payload", "Refused", "Session", "parse_message", "written"]

_log = logging.getLogger(__name__)

Payload: TypeAlias = dict[str, Any]
"""What goes over the wire as a JSON object."""

_LARGEST_SEED = 2**53
"""JSON of other languages holds no larger whole numbers."""
_LONGEST_ID = 255
_RESET_KEYS = ("episode_id", "evaluation", "options", "seed")
_STEP_KEYS = ("metadata", "text")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one server.

    Raises:
        UserError: one of them is not above 0.
    """

    sessions: int = 64
    """Sessions at the same time; further ones are refused."""
    idle: float = 600.0
    """Seconds without a request after which a session is closed."""
    message: int = 1_048_576
    """Bytes of the longest request."""

    def __post_init__(self) -> None:
        check_range("[1, inf)", sessions=self.sessions, message=self.message)
        check_range("(0, inf)", idle=self.idle)


class Refused(Exception):
    """A request that is answered with an error; `code` is one of OpenEnv's, `status` that of HTTP."""

    def __init__(self, message: str, code: str = "VALIDATION_ERROR", status: int = 422) -> None:
        super().__init__(message)
        self.code = code
        self.status = status

    def payload(self) -> Payload:
        """Return the ``data`` of an error message."""
        return {"message": in_one_line(str(self)), "code": self.code}


class Session:
    """One environment and the episode that is played in it. Its methods are called one at a time, from any thread.

    Args:
        make: makes the environment.
        task: its name.
        turn: is held while the environment works; that of a partner that all sessions share.

    Raises:
        Refused: the environment cannot be made.
    """

    def __init__(
        self, make: Callable[[], TextEnv], task: str, turn: AbstractContextManager[object] | None = None
    ) -> None:
        self._task = task
        self._turn = turn or nullcontext()
        self._env = self._call(make, "FACTORY_ERROR")
        self._episode_id: str | None = None
        self._seed: int | None = None
        self._steps = 0
        self._return = 0.0
        self._why_not: str | None = "none has begun"

    def reset(self, data: Mapping[str, Any]) -> Payload:
        """Begin an episode.

        Args:
            data: ``seed``, ``options`` (see `TextEnv.reset`), ``episode_id`` to be found in `state`; all optional.
                ``evaluation`` of AgileRL is not read.

        Returns:
            ``observation`` (``text``, ``terminated``, ``truncated``, ``info``), ``reward`` (None) and ``done``.

        Raises:
            Refused: a key or value that is none of these, or against the rules of the game.
        """
        # Unknown keys are refused, not ignored: a client that misspells `options` should not play another episode.
        _check_keys(data, _RESET_KEYS)
        seed = data.get("seed")
        options = data.get("options")
        name = data.get("episode_id")
        if seed is not None and not (type(seed) is int and 0 <= seed <= _LARGEST_SEED):
            raise Refused(f"seed must be a whole number from 0 to {_LARGEST_SEED}, got {seed!r:.80}")
        if options is not None and not isinstance(options, dict):
            raise Refused(f"options must be an object, got {options!r:.80}")
        if name is not None and not (isinstance(name, str) and len(name) <= _LONGEST_ID):
            raise Refused(f"episode_id must be a text of at most {_LONGEST_ID} characters, got {name!r:.80}")
        # Until the reset succeeds, no episode is running.
        self._why_not = "the last reset was refused"
        text, info = self._call(lambda: self._env.reset(seed=seed, options=options))
        self._seed = info["seed"]
        self._episode_id = name
        self._steps = 0
        self._return = 0.0
        self._why_not = None
        return _observation(text, None, False, False, info)

    def step(self, data: Mapping[str, Any]) -> Payload:
        """Play one action.

        Args:
            data: ``text``; ``metadata`` of OpenEnv's actions is not read.

        Returns:
            As `reset`, with the reward.

        Raises:
            Refused: there is no text, or no running episode.
        """
        _check_keys(data, _STEP_KEYS)
        action = data.get("text")
        if not isinstance(action, str):
            raise Refused(f"an action is an object with a text as 'text', got {in_one_line(repr(data), 80)}")
        # A lone surrogate, which JSON can hold and UTF-8 cannot.
        if action != valid_unicode(action):
            raise Refused("text must be valid Unicode: it has half of a surrogate pair")
        if self._why_not is not None:
            raise Refused(f"step needs a running episode, but {self._why_not}: reset first", "EXECUTION_ERROR", 409)
        # After a failure, as of a partner, the game may be half a turn further.
        self._why_not = "the task failed"
        text, reward, terminated, truncated, info = self._call(lambda: self._env.step(action))
        self._steps += 1
        self._return += float(reward)
        self._why_not = "the last one is over" if terminated or truncated else None
        return _observation(text, float(reward), terminated, truncated, info)

    def state(self) -> Payload:
        """``episode_id``, ``step_count``, ``task``, ``seed``, ``return`` (the sum of rewards) and ``running``."""
        return {
            "episode_id": self._episode_id,
            "step_count": self._steps,
            "task": self._task,
            "seed": self._seed,
            "return": self._return,
            "running": self._why_not is None,
        }

    def answer(self, message: str) -> Payload | None:
        """Return the answer to a message of OpenEnv's WebSocket protocol, or None for one that ends the session."""
        try:
            request = parse_message(message)
            kind = request.get("type")
            data = request.get("data", {})
            if kind == "close":
                return None
            if kind == "state":
                return {"type": "state", "data": self.state()}
            if kind not in ("reset", "step"):
                raise Refused(f"type must be reset, step, state or close, got {kind!r:.80}", "UNKNOWN_TYPE")
            if not isinstance(data, dict):
                raise Refused(f"data must be an object, got {data!r:.80}")
            return {"type": "observation", "data": self.reset(data) if kind == "reset" else self.step(data)}
        except Refused as refused:
            return {"type": "error", "data": refused.payload()}

    def close(self) -> None:
        """Give back what the environment holds."""
        self._why_not = "the session is closed"
        with suppress(Exception), self._turn:
            self._env.close()

    def _call(self, call: Callable[[], Any], code: str = "EXECUTION_ERROR") -> Any:
        """Call the environment; whatever it raises becomes a refusal."""
        try:
            with self._turn:
                return call()
        except UserError as error:
            raise Refused(str(error), code) from error
        except Exception as error:
            # The message may hold what a stranger should not see, so only the log of the server gets it.
            self._why_not = "the task failed"
            _log.warning("a request made %s fail", self._task, exc_info=True)
            raise Refused(f"the task failed ({type(error).__name__})", code, 500) from error


def parse_message(message: str | bytes) -> Payload:
    """The JSON object of a request.

    Raises:
        Refused: it is none, however it is broken.
    """
    try:
        content = json.loads(message, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, numbers without end; brackets without end
        raise Refused(f"a message must be JSON: {in_one_line(error, 120)}", "INVALID_JSON", 400) from error
    if not isinstance(content, dict):
        raise Refused(f"a message must be a JSON object, got {type(content).__name__}")
    return content


def written(payload: Payload) -> str:
    """A payload as JSON, in ASCII."""
    return json.dumps(payload, default=_plain)


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy, and sets, as JSON has them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _check_keys(data: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in data:
        if key not in known:
            raise Refused(f"unknown key {key!r:.80}; known: {', '.join(known)}")


def _observation(
    text: str, reward: float | None, terminated: bool, truncated: bool, info: Mapping[str, Any]
) -> Payload:
    """Return an observation; ``terminated`` and ``truncated`` are more than OpenEnv's ``done``."""
    seen = {"text": text, "terminated": terminated, "truncated": truncated, "info": dict(info)}
    return {"observation": seen, "reward": reward, "done": terminated or truncated}
