"""Games of OpenEnv servers as tasks: ``openenv:URL``.

A server may ignore the seed, and then no episode can be played again. What can be won is not declared, so the range of
returns is everything. A connection cannot be pickled.
"""

import json
import math
import re
import socket
import weakref
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from lmrl.envs.base import Opening, TextEnv, Turn
from lmrl.envs.outside import outside_task
from lmrl.envs.task import Task
from lmrl.errors import UserError, check_range, in_one_line, without_secrets
from lmrl.types import LARGEST_REWARD
from lmrl.utils.files import parse_json

__all__ = ["OpenEnvGame", "openenv_task"]

_ADDRESS = re.compile(r"(?:http|ws)s?://[^\s/?#]+[^\s?#]*")
_LONGEST_REPLY = 2**22  # characters
_LONGEST_FAREWELL = 2.0  # seconds in which a server may answer that the connection is closed


def openenv_task(url: str) -> Task:
    """Return the task of a server.

    Raises:
        UserError: that is no address.
    """
    return outside_task("openenv", url, f"{__name__}:OpenEnvGame", url=_address(url))


class OpenEnvGame(TextEnv):
    """A session of a server of OpenEnv; a lost one is begun again with the next episode.

    With ``lmrl serve``, texts, rewards, endings and ``info`` are those of `lmrl.make`, and reset options are sent. With
    other servers, ``done`` is an end by the rules. A lone surrogate in a text becomes U+FFFD. An answer of another
    form, or with a reward that float32 cannot hold, is an error at its turn; redirects are not followed.

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

    return_range = (-math.inf, math.inf)

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
        try:
            self._library = import_module("websockets.sync.client")
        except ImportError as error:
            raise UserError(f"this game needs websockets ({error}): pip install 'lmrl[serve]'") from error
        self._connection: Any = None
        try:
            self._connected()
        except Exception as error:
            raise UserError(f"no server at {url}: {in_one_line(error, 120)}") from error

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            # The server closes the session as well when the connection ends, so a lost farewell does not matter.
            with suppress(Exception):
                self._connection.send('{"type": "close"}')
                self._connection.close()
            self._hang_up()
            self._connection = None

    def __reduce__(self) -> Any:
        raise UserError(f"a session of {self._url} cannot be copied or pickled: the server has the game")

    def _check_options(self, options: Mapping[str, Any]) -> None:
        """Accept all options; the server checks them."""

    def begin(self, options: dict[str, Any]) -> Opening:
        seed = int(self.np_random_seed)
        data = {"seed": seed, "options": options} if options else {"seed": seed}
        try:
            answer = self._ask("reset", data)
        except ConnectionError:
            # The session was idle for too long, or the server was started again: try once with a new connection.
            answer = self._ask_once("reset", data)
        info = answer.info
        start = info.pop("start", {})
        info.pop("seed", None)
        task_id = str(info.pop("task_id", f"{self._url} {seed}"))
        return Opening(answer.text, task_id, start if isinstance(start, dict) else {}, info)

    def turn(self, action: str) -> Turn:
        return self._ask_once("step", {self._action: action})

    def _ask_once(self, kind: str, data: Mapping[str, Any]) -> Turn:
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
            reply = connection.recv(timeout=self._timeout)
        except Exception as error:  # websockets, ssl and the system have many kinds
            self.close()
            reason = in_one_line(error, 120) or type(error).__name__
            raise ConnectionError(f"no answer of {self._url}: {reason}") from error
        return self._read(reply)

    def _connected(self) -> Any:
        if self._connection is None:
            connection = self._library.connect(
                self._url,
                open_timeout=self._timeout,
                close_timeout=min(self._timeout, _LONGEST_FAREWELL),
                max_size=_LONGEST_REPLY,
                create_connection=_without_redirects(self._library),
            )
            # The server counts its sessions, so a game that is garbage collected frees its place.
            self._hang_up = weakref.finalize(self, _shut_down, connection.socket)
            self._connection = connection
        return self._connection

    def _read(self, reply: str | bytes) -> Turn:
        try:
            answer = parse_json(reply, "the answer", mend=True)
            data = answer["data"]
            if answer["type"] == "error":
                message = in_one_line(str(data["message"]), 200)
                mismatch = data.get("code") == "VALIDATION_ERROR"
                hint = "; another field of its actions may be the text: --env action=NAME" if mismatch else ""
                raise _Refusal(f"{self._url} refuses: {message}{hint}")
            observation = data["observation"]
            reward = data.get("reward")
            done = data.get("done", False)
            reward = 0.0 if reward is None else reward  # the first observation has none
            is_reward = isinstance(reward, int | float) and abs(reward) <= LARGEST_REWARD
            if not (isinstance(observation, dict) and isinstance(done, bool) and is_reward):
                raise TypeError("of another form")
            info: Any = observation.get("info")
            # Only `lmrl serve` has these fields; `done` alone does not say why an episode ended.
            is_lmrl = {"text", "terminated", "truncated"} <= set(observation) and isinstance(info, dict)
            facts = _facts(info) if is_lmrl else {}
        except _Refusal:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"the answer of {self._url} is not one of OpenEnv: {reply[:80]!r}") from error
        facts["illegal"] = facts.get("illegal") is True
        facts["success"] = facts.get("success") is True
        terminated = observation["terminated"] is True if is_lmrl else done
        truncated = is_lmrl and observation["truncated"] is True
        return Turn(self._text_of(observation), float(reward), terminated, truncated, facts)

    def _text_of(self, observation: Mapping[str, Any]) -> str:
        texts = [name for name, value in observation.items() if isinstance(value, str)]
        name = self._field
        if not name and "text" in texts:
            name = "text"
        elif not name and len(texts) == 1:
            name = texts[0]
        if name not in observation:
            what = f"no {name!r}" if name else "several texts" if texts else "no text"
            fields = in_one_line(", ".join(observation), 200)
            raise UserError(f"{self._url} tells {what} ({fields}); say which to show: --env observation=NAME")
        value = observation[name]
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
    replies = facts.get("replies", ())
    if not (isinstance(replies, tuple) and all(isinstance(reply, str) for reply in replies)):
        del facts["replies"]
    return facts


def _with_tuples(value: Any) -> Any:
    """Turn lists into tuples, as the games of the benchmark have them; JSON has lists alone."""
    if isinstance(value, dict):
        return dict(zip(value, map(_with_tuples, value.values()), strict=True))
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _address(url: str) -> str:
    """Return the address of the WebSocket."""
    if not _ADDRESS.fullmatch(url) or "@" in url:  # a password in it would be written with the name of the task
        shown = without_secrets([url])[0]
        raise UserError(
            f"openenv: needs the address of a server without a password, e.g. openenv:http://127.0.0.1:8000, "
            f"got {shown!r:.80}"
        )
    base = re.sub(r"^(?:http|ws)", "ws", url).rstrip("/")
    return base if base.endswith("/ws") else f"{base}/ws"
