"""Games of other projects as tasks: ``openenv:URL`` of an OpenEnv server, ``textarena:NAME`` of the package TextArena.

Such a task exists once its user has named it (`named_task`, `make`, a command). A file, a checkpoint or another machine
cannot name one: no address is opened and no game loaded that the user did not ask for.

These games need not obey the laws of `lmrl.envs.checker`; ``lmrl check-env`` reports which are broken. Known limits:

- They do not declare their returns (`return_range` is unbounded), and they define success themselves, if at all.
- A server may ignore the seed; then no episode can be repeated. A connection cannot be pickled.
- TextArena draws from the global generators. Here each game has its own states of them, so that the same seed gives the
  same game and other code is not affected. TextArena does not distinguish truncation from termination.
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
"""The prompt of games that explain themselves in their first text."""

_ADDRESS = re.compile(r"(?:http|ws)s?://[^\s/?#]+[^\s?#]*")
_LONGEST_REPLY = 2**22
_LONGEST_FAREWELL = 2.0  # seconds in which a server may answer that the connection is closed
_EVERYTHING = (-math.inf, math.inf)


def named_task(name: str) -> Task:
    """Return the task that a user has named, and register it if it is a game of another project.

    Raises:
        UserError: there is none of that name; the package of its game is missing.
    """
    kind, colon, rest = name.partition(":")
    if not (colon and kind in _KINDS):
        return registry.task(name)
    entry, argument, complete = _KINDS[kind]
    task = Task(
        name=name,
        description=f"{rest}, by {kind}",
        # Gymnasium's ids allow few characters.
        env_id=f"lmrl/{re.sub(r'[^A-Za-z0-9]+', '-', name).strip('-')}-v0",
        entry_point=f"{__name__}:{entry}",
        max_action_tokens=128,
        kwargs={argument: complete(rest)},
        chat=f"{__name__}:CHAT",
    )
    registry.register(task, listed=False)
    return task


def make(name: str, **kwargs: Any) -> TextEnv:
    """Make the environment of a task that the user has named, of ours or of another project.

    Args:
        name: a name from `lmrl.tasks`, ``openenv:URL`` or ``textarena:NAME``.
        kwargs: arguments of the environment that replace those of the task.

    Raises:
        UserError: for an unknown task or argument.
    """
    return registry.make(named_task(name).name, **kwargs)


class OpenEnvGame(TextEnv):
    """A session of an OpenEnv server; a lost connection is opened again with the next episode.

    With a server of ours (``lmrl serve``), texts, rewards, endings and ``info`` are those of `lmrl.make`, and it gets
    the reset options. With others, ``done`` counts as termination. Half a character in a text becomes U+FFFD. An
    answer of another form, or with a reward that float32 cannot hold, is an error at its turn; redirects are not
    followed.

    Args:
        url: address of the server, ``http://...`` or ``ws://...``.
        action: field of its actions that takes the text, e.g. ``message``.
        observation: field of its observations that the policy reads; anything but a text is shown as JSON. Empty:
            ``text``, or else the only field that holds a text.
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
        """Accept all options: the server checks them."""

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
            message = connection.recv(timeout=self._timeout)
        except Exception as error:  # websockets, ssl and the system raise many kinds
            self.close()
            reason = in_one_line(error, 120) or type(error).__name__
            raise ConnectionError(f"no answer of {self._url}: {reason}") from error
        return self._read(message)

    def _connected(self) -> Any:
        if self._connection is None:
            connection = self._library.connect(
                self._url,
                open_timeout=self._timeout,
                close_timeout=min(self._timeout, _LONGEST_FAREWELL),
                max_size=_LONGEST_REPLY,
                create_connection=_without_redirects(self._library),
            )
            # A game that is garbage collected without close() still gives its socket back.
            self._hang_up = weakref.finalize(self, _shut_down, connection.socket)
            self._connection = connection
        return self._connection

    def _read(self, message: str | bytes) -> Turn:
        try:
            answer = parse_json(message, "the answer", mend=True)
            data = answer["data"]
            if answer["type"] == "error":
                reason = in_one_line(str(data["message"]), 200)
                # An action of another form, most likely because the text belongs into another field.
                mismatch = data.get("code") == "VALIDATION_ERROR"
                hint = "; another field of its actions may be the text: --env action=NAME" if mismatch else ""
                raise _Refusal(f"{self._url} refuses: {reason}{hint}")
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
            raise UserError(f"the answer of {self._url} is not one of OpenEnv: {message[:80]!r}") from error
        # Only a server of ours sends `info` and distinguishes truncation from termination.
        server_info = observation.get("info")
        ours = {"text", "terminated", "truncated"} <= set(observation) and isinstance(server_info, dict)
        info = _facts(server_info or {}) if ours else {}
        info["illegal"] = info.get("illegal") is True
        info["success"] = info.get("success") is True
        terminated = observation["terminated"] is True if ours else done
        truncated = ours and observation["truncated"] is True
        return Turn(self._text_of(observation), float(reward), terminated, truncated, info)

    def _text_of(self, observation: Mapping[str, Any]) -> str:
        texts = [name for name, value in observation.items() if isinstance(value, str)]
        name = self._field or ("text" if "text" in texts else texts[0] if len(texts) == 1 else "")
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
    """Return a connection class of `websockets` that connects to the address of the user and to no other."""

    class Connection(library.ClientConnection):  # type: ignore[misc]
        def handshake(self, *arguments: Any, **settings: Any) -> None:
            try:
                super().handshake(*arguments, **settings)
            except Exception as error:
                # The package follows a redirect only where it sees its own exception, so raise another one.
                raise ConnectionError(in_one_line(error, 120) or type(error).__name__) from error

    return Connection


def _facts(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server's ``info`` without entries that have another meaning in episodes."""
    facts: dict[str, Any] = _with_tuples(info)
    facts.pop("error", None)  # `lmrl.rollout.rollout` marks aborted episodes by it
    if not isinstance(facts.get("final_observation", ""), str):
        del facts["final_observation"]
    replies = facts.get("replies", ())
    if not (isinstance(replies, tuple) and all(isinstance(reply, str) for reply in replies)):
        del facts["replies"]
    return facts


def _with_tuples(value: Any) -> Any:
    """Turn lists into tuples, which our games use; JSON has lists only."""
    if isinstance(value, dict):
        return {key: _with_tuples(inner) for key, inner in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _address(url: str) -> str:
    """Address of the WebSocket.

    Raises:
        UserError: it is no address.
    """
    # The address is part of the task's name, which is written into files: a password must not be in it.
    if not _ADDRESS.fullmatch(url) or "@" in url:
        shown = without_secrets([url])[0]
        raise UserError(
            f"openenv: needs the address of a server without a password, e.g. openenv:http://127.0.0.1:8000, "
            f"got {shown!r:.80}"
        )
    base = re.sub(r"^(?:http|ws)", "ws", url).rstrip("/")
    return base if base.endswith("/ws") else f"{base}/ws"


class TextArenaGame(TextEnv):
    """A single-player game of TextArena without its wrappers, so that the policy reads new text only.

    The reward comes at the end, a reward of 1 is success, and an action is illegal if the game calls it invalid.

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
        # States of this game for the global generators of Python and NumPy.
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
            except (Exception, SystemExit) as error:  # a game may even end the process
                reason = in_one_line(error, 120)
                raise UserError(f"TextArena cannot begin {self._name} ({type(error).__name__}: {reason})") from error
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
        # Both go by player; the only one has number 0.
        reward = float((rewards or {}).get(0, 0.0))
        outcome = (facts or {}).get(0, {})
        reason = str(outcome.get("reason", ""))
        text = "\n".join(filter(None, (text, reason)))
        info = {"illegal": illegal or bool(outcome.get("invalid_move")), "success": reward >= 1, "reason": reason}
        return Turn(text, reward, terminated=True, truncated=False, info=info)

    def _new_text(self) -> tuple[str, bool]:
        """Return the text since the last turn without the player's own words, and whether a move was invalid."""
        kinds = _arena().ObservationType
        _, messages = self._game.get_observation()
        if isinstance(messages, str):
            return messages, False
        shown: list[str] = []
        invalid = False
        for _, text, kind in messages:
            if kind is not kinds.PLAYER_ACTION:
                shown.append(text)
            # TextArena rejects an invalid move by a message of its administrator.
            invalid = invalid or kind is kinds.GAME_ADMIN
        return "\n".join(shown), invalid

    @contextmanager
    def _own_chance(self) -> Iterator[None]:
        """Inside, the global generators have the states of this game."""
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
    """Return the key of the game without wrappers in TextArena's table.

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
"""By the text before the colon: the class of the game, its argument, and the function that checks the argument."""
