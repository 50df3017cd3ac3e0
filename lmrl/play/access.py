"""Access control of the web page.

One-time keys, sessions, headers of every request and response, and connections that must not stay.
"""

import asyncio
import ipaddress
import secrets
import socket
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from lmrl.errors import UserError

__all__ = ["BoundedConnection", "Keys", "Listener", "OwnRequests", "listen"]

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Keys:
    """Keys that each open one session. Only the tab that opened a session knows it.

    Args:
        announce: called with a new key when the last one that people were told was used.
        make: makes keys and sessions that cannot be guessed.
    """

    def __init__(self, announce: Callable[[str], object], make: Callable[[], str] = secrets.token_urlsafe) -> None:
        self._announce = announce
        self._make = make
        self._keys: set[str] = set()
        self._hidden: set[str] = set()
        self._sessions: set[str] = set()
        self._lock = Lock()

    def new(self, hidden: bool = False) -> str:
        """A key that was not used yet.

        Args:
            hidden: do not announce it: it is for a browser that is started with it, and perhaps there is none.
        """
        key = self._make()
        with self._lock:
            self._keys.add(key)
            if hidden:
                self._hidden.add(key)
        return key

    def open(self, key: str) -> str | None:
        """The session that a key opens, which is worthless from then on; None for what is no key, or not any more."""
        with self._lock:
            found = _find(key, self._keys)
            if found is None:
                return None
            self._keys.remove(found)
            session = self._make()
            self._sessions.add(session)
            last = self._keys <= self._hidden
        if last:
            self._announce(self.new())
        return session

    def knows(self, session: str) -> bool:
        """Whether that is a session."""
        return _find(session, self._sessions) is not None


def _find(given: str, known: Iterable[str]) -> str | None:
    """The one that is given; how long that takes does not tell how much of it is right."""
    said = given.encode("utf-8", "replace")
    return next((one for one in [*known] if secrets.compare_digest(said, one.encode())), None)


class OwnRequests:
    """Answers requests to this machine by its own page only, and says in every answer how it is to be treated.

    A page from elsewhere can make a browser send requests here (they name it as their origin), or have its own name
    lead here (they name it as the host).

    Args:
        app: what answers.
        names: of the machine besides ``localhost``; numerical addresses are allowed, since no one can register them.
    """

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        refusal = self._refusal(Headers(scope=scope))
        app = self._app if refusal is None else PlainTextResponse(f"{refusal}\n", 403)
        await app(scope, receive, answer)

    def _refusal(self, headers: Headers) -> str | None:
        host = headers.get("host", "")
        origin = headers.get("origin")
        if not self._is_own(host):
            return "This is not a name of this machine. Open the address that lmrl web printed."
        if (
            headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            return "Only the page itself may ask."
        if origin is not None and origin.partition("://")[2].lower() != host.lower():
            return "Only the page itself may ask."
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class BoundedConnection(H11Protocol):
    """HTTP as uvicorn has it, with limits of time and number.

    A connection that has not sent a whole request by this time is cut, however little came of it and however
    steadily, and so is one that has not taken its answer and asked again. A new one beyond the number takes the place
    of the one that has waited longest. How long a player thinks about a whole request is not limited.
    """

    seconds = 10.0
    """For taking an answer and sending the next whole request."""
    most = 64
    """Connections at the same time."""

    waiting_since: float
    """Since when a request is awaited; on the clock of the loop."""
    _timer: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        """Begin to wait, and make room."""
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        self._timer = self.loop.call_later(self.seconds, self._look)
        # What was cut is still among them until the loop comes to it.
        living = [
            one for one in self.connections if isinstance(one, BoundedConnection) and not one.transport.is_closing()
        ]
        if len(living) > self.most:
            idle = [one for one in living if one is not self and not one.answering]
            min(idle, key=lambda one: one.waiting_since, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    @property
    def answering(self) -> bool:
        """Whether a whole request came whose answer is not complete."""
        whole = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        return whole and self.cycle is not None and not self.cycle.response_complete

    def _look(self) -> None:
        """Cut the connection if its time is over, else look again."""
        left = self.waiting_since + self.seconds - self.loop.time()
        if left <= 0 and not self.answering:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(left if left > 0 else self.seconds, self._look)


class Listener(socket.socket):
    """A socket that listens and hangs up on a connection at once where too many are open.

    `BoundedConnection` makes room only when its loop comes to it, and a loop of asyncio accepts thousands before.
    """

    most = 2 * BoundedConnection.most
    """Connections at the same time, those included that are about to be cut."""

    _open: tuple[socket.socket, ...] = ()

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection and its address.

        Raises:
            ConnectionAbortedError: it was one too many; loops take this as a client that has left.
        """
        connection, address = super().accept()
        self._open = tuple(one for one in self._open if one.fileno() >= 0)
        if len(self._open) >= self.most:
            connection.close()
            raise ConnectionAbortedError("too many connections")
        self._open = (*self._open, connection)
        return connection, address


def listen(host: str, port: int, most: int = Listener.most) -> Listener:
    """A socket that listens at a port, 0 for any free one.

    Args:
        host: address to listen at.
        port: to listen at.
        most: connections at the same time.

    Raises:
        UserError: the port is taken, or the host is no name or address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen at host {host!r}, port {port} ({error}); --port 0 takes any free one"
        ) from error
    listener = Listener(fileno=listening.detach())
    listener.most = most
    return listener
