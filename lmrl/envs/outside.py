"""Games of others as tasks: ``openenv:URL`` of a server of OpenEnv, ``textarena:NAME`` of the package TextArena.

Such a task is known once its user has named it (`named_task`, `make`, a command). Nothing that a file, a checkpoint or
another machine says can do that: neither is an address opened, nor a game loaded, that the user did not name.

They need not obey the laws of `lmrl.envs.checker`; ``lmrl check-env`` tells which are broken. What is known beforehand:

- What can be won is not declared (`return_range` is everything), and success is what they call a solution, if they do.
- A server may leave the seed aside, and then no episode can be played again. A connection cannot be pickled.
- TextArena draws from the global generators; here each game has states of those of its own, so that the same seed is
  the same game again, and others are not touched. It does not tell being cut short from an end by the rules.
"""

import json
import math
import random
import re
import socket
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

import numpy as np

from lmrl.envs import registry
from lmrl.envs.base import Opening, TextEnv, Turn
from lmrl.envs.task import ChatPrompt, Task
from lmrl.errors import UserError, check_range, in_one_line, unknown, without_secrets
from lmrl.types import LARGEST_REWARD
from lmrl.utils.files import parse_json

__all__ = ["CHAT", "OpenEnvGame", "TextArenaGame", "make", "named_task"]

CHAT = ChatPrompt(role="a player", rules="Play the game that is described below.", examples=0)
"""Of games that explain themselves in their first text."""

_ADDRESS = re.compile(r"(?:http|ws)s?://[^\s/?#]+[^\s?#]*")
_LONGEST_REPLY = 2**22
_LONGEST_FAREWELL = 2.0  # seconds in which a server may answer that the connection is closed
_EVERYTHING = (-math.inf, math.inf)


def named_task(name: str) -> Task:
    """The task that a user has named; one of others is made known, as by `lmrl.envs.registry.register`.

    Raises:
        UserError: there is none of that name; the package of its game is missing.
    """
    kind, colon, rest = name.partition(":")
    if not (colon and kind in _KINDS):
        return registry.task(name)
    entry, argument, complete = _KINDS[kind]
    row = Task(
        name=name,
        description=f"{rest}, by {kind}",
        env_id=f"lmrl/{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}-v0",
        entry_point=f"{__name__}:{entry}",
        max_action_tokens=128,
        kwargs={argument: complete(rest)},
        chat=f"{__name__}:CHAT",
    )
    registry.register(row, listed=False)
    return row


def make(name: str, **kwargs: Any) -> TextEnv:
    """Make the environment of a task that the user has named: as `lmrl.envs.registry.make`, and also one of others.

    Args:
        name: a name from `lmrl.tasks`, ``openenv:URL`` or ``textarena:NAME``.
        kwargs: arguments of the environment that replace those of the task.

    Raises:
        UserError: for an unknown task or argument.
    """
    return registry.make(named_task(name).name, **kwargs)


class OpenEnvGame(TextEnv):
    """A session of a server of OpenEnv; a lost one is begun again with the next episode.

    Of a server of ours (``lmrl serve``), texts, rewards, endings and ``info`` are those of `lmrl.make`, and reset
    options are handed on. Of others, ``done`` is an end by the rules. Half a character in a text becomes U+FFFD. An
    answer of another form, or with a reward that float32 cannot hold, is an error at its turn; redirects are not
    followed.

    Args:
        url: address of the server, ``http://...`` or ``ws://...``.
        action: field of its actions that is a text, e.g. ``message``.
        observation: field of its observations that is shown to the player; what is no text is shown as JSON. Empty:
            ``text``, or else the only one that is a text.
        timeout: seconds in which it must answer.
        render_mode: see `TextEnv`.

    Raises:
        UserError: that is no address, nothing answers there, or the package `websockets` is missing.
    """

    return_range = _EVERYTHING

    def __init__(
        self,
        url: str,
        action: str = "text",
        observation: str = "",
        timeout: float = 60.0,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(render_mode)
        check_range("(0, inf)", timeout=timeout)
        self._url = _address(url)
        self._action = action
        self._field = observation
        self._timeout = timeout
        self._library = _package("websockets.sync.client", "websockets", "serve")
        self._connection: Any = None
        try:
            self._connected()
        except Exception as error:
            raise UserError(f"no server at {url}: {in_one_line(error, 120)}") from error

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            with suppress(Exception):
                self._connection.send('{"type": "close"}')
                self._connection.close()
            self._hang_up()
            self._connection = None

    def __reduce__(self) -> Any:
        raise UserError(f"a session of {self._url} cannot be copied or pickled: the server has the game")

    def _check_options(self, options: Mapping[str, Any]) -> None:
        """The server knows."""

    def begin(self, options: dict[str, Any]) -> Opening:
        seed = int(self.np_random_seed)
        data = {"seed": seed, "options": options} if options else {"seed": seed}
        try:
            answer = self._ask("reset", data)
        except ConnectionError:
            # The session was idle for too long, or the server has been restarted: try once more on a new connection.
            answer = self._ask_or_fail("reset", data)
        info = answer.info
        start = info.pop("start", {})
        info.pop("seed", None)
        task_id = str(info.pop("task_id", f"{self._url} {seed}"))
        return Opening(answer.text, task_id, start if isinstance(start, dict) else {}, info)

    def turn(self, action: str) -> Turn:
        return self._ask_or_fail("step", {self._action: action})

    def _ask_or_fail(self, kind: str, data: Mapping[str, Any]) -> Turn:
        """Ask like `_ask`, but turn a lost connection into an error for the user."""
        try:
            return self._ask(kind, data)
        except ConnectionError as error:
            raise UserError(str(error)) from error

    def _ask(self, kind: str, data: Mapping[str, Any]) -> Turn:
        """Send a request and return the server's answer.

        Raises:
            ConnectionError: it does not.
            UserError: it refuses, or answers something else.
        """
        try:
            connection = self._connected()
            connection.send(json.dumps({"type": kind, "data": data}))
            said = connection.recv(timeout=self._timeout)
        except Exception as error:  # of websockets, ssl and the system, many kinds
            self.close()
            told = in_one_line(error, 120) or type(error).__name__
            raise ConnectionError(f"no answer of {self._url}: {told}") from error
        return self._read(said)

    def _connected(self) -> Any:
        if self._connection is None:
            connection = self._library.connect(
                self._url,
                open_timeout=self._timeout,
                close_timeout=min(self._timeout, _LONGEST_FAREWELL),
                max_size=_LONGEST_REPLY,
                create_connection=_without_redirects(self._library),
            )
            self._hang_up = weakref.finalize(self, _shut_down, connection.socket)
            self._connection = connection
        return self._connection

    def _read(self, said: str | bytes) -> Turn:
        try:
            answer = parse_json(said, "the answer", mend=True)
            data = answer["data"]
            if answer["type"] == "error":
                message = in_one_line(str(data["message"]), 200)
                mismatch = data.get("code") == "VALIDATION_ERROR"
                hint = "; another field of its actions may be the text: --env action=NAME" if mismatch else ""
                raise _Refusal(f"{self._url} refuses: {message}{hint}")
            observation = data["observation"]
            reward = data.get("reward")
            done = data.get("done", False)
            reward = 0.0 if reward is None else reward
            is_reward = isinstance(reward, int | float) and abs(reward) <= LARGEST_REWARD
            if not (isinstance(observation, dict) and isinstance(done, bool) and is_reward):
                raise TypeError("of another form")
        except _Refusal:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"the answer of {self._url} is not one of OpenEnv: {said[:80]!r}") from error
        return self._observed(observation, float(reward), done)

    def _observed(self, seen: dict[str, Any], reward: float, done: bool) -> Turn:
        info = seen.get("info")
        ours = {"text", "terminated", "truncated"} <= set(seen) and isinstance(info, dict)
        told = _facts(info) if ours and info is not None else {}
        told |= {key: told.get(key) is True for key in ("illegal", "success")}
        terminated = seen["terminated"] is True if ours else done
        truncated = ours and seen["truncated"] is True
        return Turn(self._text_of(seen), reward, terminated, truncated, told)

    def _text_of(self, seen: Mapping[str, Any]) -> str:
        texts = [name for name, value in seen.items() if isinstance(value, str)]
        name = self._field or ("text" if "text" in texts else texts[0] if len(texts) == 1 else "")
        if name not in seen:
            what = f"no {name!r}" if name else "several texts" if texts else "no text"
            fields = in_one_line(", ".join(seen), 200)
            raise UserError(f"{self._url} tells {what} ({fields}); say which to show: --env observation=NAME")
        value = seen[name]
        return value if isinstance(value, str) else json.dumps(value)


class _Refusal(UserError):
    """The server has answered with an error."""


def _shut_down(connection: socket.socket) -> None:
    """Close without a message: the garbage collector may hold the locks that a message would need."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _without_redirects(library: Any) -> type:
    """A connection of the package `websockets` that goes to no other address than the one that the user named."""

    class Connection(library.ClientConnection):  # type: ignore[misc]
        def handshake(self, *arguments: Any, **settings: Any) -> None:
            try:
                super().handshake(*arguments, **settings)
            except Exception as error:
                # The package follows a redirect only where it sees its own exception.
                raise ConnectionError(in_one_line(error, 120) or type(error).__name__) from error

    return Connection


def _facts(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server's ``info`` without entries that have another meaning in episodes."""
    facts: dict[str, Any] = _with_tuples(info)
    facts.pop("error", None)  # by which `lmrl.rollout.rollout` marks an episode that it has aborted
    if not isinstance(facts.get("final_observation", ""), str):
        del facts["final_observation"]
    replies = facts.get("replies", ())
    if not (isinstance(replies, tuple) and all(isinstance(reply, str) for reply in replies)):
        del facts["replies"]
    return facts


def _with_tuples(value: Any) -> Any:
    """As our games have it: JSON knows lists alone."""
    if isinstance(value, dict):
        return {key: _with_tuples(inner) for key, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _address(url: str) -> str:
    """Address of the WebSocket.

    Raises:
        UserError: it is no address.
    """
    if not _ADDRESS.fullmatch(url) or "@" in url:  # a password in it would be written with the name of the task
        shown = without_secrets([url])[0]
        raise UserError(
            f"openenv: needs the address of a server without a password, e.g. openenv:http://127.0.0.1:8000, "
            f"got {shown!r:.80}"
        )
    base = re.sub(r"^(?:http|ws)", "ws", url).rstrip("/")
    return base if base.endswith("/ws") else f"{base}/ws"


class TextArenaGame(TextEnv):
    """A game of TextArena for one player, as it is under its wrappers: only new text is shown.

    The reward is that of the end, success a reward of 1, illegal what the game calls an invalid move.

    Args:
        name: id of the game in TextArena's registry, e.g. ``Mastermind-v0``.
        render_mode: see `TextEnv`.

    Raises:
        UserError: the package is missing, has no such game, or cannot make it; it is for several players.
    """

    return_range = _EVERYTHING

    def __init__(self, name: str, render_mode: str | None = "ansi") -> None:
        super().__init__(render_mode)
        self._name = _arena_name(name)
        self._chance = (random.Random(0).getstate(), np.random.RandomState(0).get_state())
        self._game: Any = None

    def begin(self, options: dict[str, Any]) -> Opening:
        seed = int(self.np_random_seed)
        arena = _arena()
        self._chance = (random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state())
        with self._own_chance():
            try:
                self._game = arena.make(self._name)
                self._game.reset(num_players=1, seed=seed)
            except (Exception, SystemExit) as error:
                told = in_one_line(error, 120)
                raise UserError(f"TextArena cannot begin {self._name} ({type(error).__name__}: {told})") from error
            if not isinstance(self._game.state, arena.SinglePlayerState):
                raise UserError(f"{self._name} is not for one player: only those games can be played")
            text, _ = self._new_text()
        return Opening(text, task_id=f"{self._name} {seed}", start={})

    def turn(self, action: str) -> Turn:
        with self._own_chance():
            done, _ = self._game.step(action)
            text, illegal = self._new_text()
            if not done:
                return Turn(text, 0.0, False, False, {"illegal": illegal, "success": False})
            rewards, facts = self._game.close()
        reward = float((rewards or {}).get(0, 0.0))
        told = (facts or {}).get(0, {})
        reason = str(told.get("reason", ""))
        text = "\n".join(filter(None, (text, reason)))
        info = {"illegal": illegal or bool(told.get("invalid_move")), "success": reward >= 1, "reason": reason}
        return Turn(text, reward, terminated=True, truncated=False, info=info)

    def _new_text(self) -> tuple[str, bool]:
        """Return the text since the last turn without the player's own words, and whether a move was invalid."""
        kinds = _arena().ObservationType
        _, said = self._game.get_observation()
        if isinstance(said, str):
            return said, False
        shown = [text for _, text, kind in said if kind is not kinds.PLAYER_ACTION]
        return "\n".join(shown), any(kind is kinds.GAME_ADMIN for _, _, kind in said)

    @contextmanager
    def _own_chance(self) -> Iterator[None]:
        """Inside, the global generators are those of this game."""
        others = random.getstate(), np.random.get_state()
        random.setstate(self._chance[0])
        np.random.set_state(self._chance[1])
        try:
            yield
        finally:
            self._chance = (random.getstate(), np.random.get_state())
            random.setstate(others[0])
            np.random.set_state(others[1])


def _arena() -> Any:
    return _package("textarena", "textarena", "textarena")


def _arena_name(name: str) -> str:
    """The game as it is under its wrappers: a key of TextArena's own table, whatever is written here.

    Raises:
        UserError: TextArena is missing, or has no game of that name.
    """
    _arena()
    known = import_module("textarena.envs.registration").ENV_REGISTRY
    if name not in known:
        raise unknown("game of textarena", name, [key for key in known if not re.search(r"-(raw|train)$", key)])
    raw = f"{name}-raw"
    return raw if raw in known else name


def _package(module: str, name: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(f"this game needs {name} ({error}): pip install 'lmrl[{extra}]'") from error


_KINDS: dict[str, tuple[str, str, Callable[[str], str]]] = {
    "openenv": ("OpenEnvGame", "url", _address),
    "textarena": ("TextArenaGame", "name", _arena_name),
}
"""By what stands before the colon: the class of the game, its argument, and what tests and completes that."""
