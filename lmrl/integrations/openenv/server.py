"""A task behind OpenEnv's protocol: the WebSocket that its clients use, and the same over plain HTTP.

The package `openenv` has a server too. This one is small (it needs starlette alone), ends a session that is idle
together with its connection, keeps the sessions of HTTP, and answers whatever comes: see `lmrl.integrations.openenv.
sessions`. Protocol: OpenEnv 0.3, ``/ws``, ``/reset``, ``/step``, ``/state``, ``/schema``, ``/metadata``, ``/health``.
"""

import asyncio
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lmrl.envs.base import TextEnv
from lmrl.errors import UserError
from lmrl.integrations.openenv.sessions import (
    Limits,
    Payload,
    Refused,
    Session,
    parse_message,
    written,
)

try:
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route, WebSocketRoute
    from starlette.types import ASGIApp, Receive, Scope, Send
    from starlette.websockets import WebSocket, WebSocketDisconnect
except ImportError as error:
    raise UserError(f"serving a task needs starlette ({error}): pip install 'lmrl[serve]'") from error

__all__ = ["TaskServer", "make_app"]

_STEP_KEYS = ("action", "request_id", "session", "timeout_s")
_GOING_AWAY = 1001
_TRY_AGAIN_LATER = 1013


def make_app(
    make: Callable[[], TextEnv], task: str, limits: Limits | None = None, description: str = "", shared: bool = False
) -> ASGIApp:
    """The ASGI application that serves a task.

    Args:
        make: makes one environment, for each session.
        task: its name.
        limits: None: the usual ones.
        description: description of the task, one line.
        shared: the environments share a partner, so that only one works at a time.
    """
    return _NotForPages(TaskServer(make, task, limits or Limits(), description, shared).app())


@dataclass(slots=True)
class _Held:
    """A session of HTTP: it is closed when its timer ends."""

    session: Session
    timer: asyncio.TimerHandle | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)


class TaskServer:
    """Opens and closes sessions, and carries requests to them. Arguments: see `make_app`."""

    def __init__(
        self, make: Callable[[], TextEnv], task: str, limits: Limits, description: str = "", shared: bool = False
    ) -> None:
        self._make = make
        self._task = task
        self._limits = limits
        self._description = description
        self._turn = threading.Lock() if shared else None
        self._held: dict[str, _Held] = {}
        self._ending: set[asyncio.Future[None]] = set()  # the loop alone would forget them
        self.open_sessions = 0
        """How many there are now, of both kinds."""

    def app(self) -> Starlette:
        """Return the application with its routes."""
        metadata = {"name": self._task, "description": self._description, "version": "1.0.0"}
        return Starlette(
            routes=[
                WebSocketRoute("/ws", self._websocket),
                Route("/reset", self._answering(self._reset), methods=["POST"]),
                Route("/step", self._answering(self._step), methods=["POST"]),
                Route("/state", self._answering(self._state), methods=["GET"]),
                Route("/close", self._answering(self._close), methods=["POST"]),
                Route("/health", lambda _: JSONResponse({"status": "healthy"}), methods=["GET"]),
                Route("/metadata", lambda _: JSONResponse(metadata), methods=["GET"]),
                Route("/schema", lambda _: JSONResponse(SCHEMA), methods=["GET"]),
            ]
        )

    async def _open(self) -> Session:
        """Begin a new session, or refuse."""
        # Sessions that are being made count, so that two requests at once do not both get the last place.
        if self.open_sessions >= self._limits.sessions:
            message = f"all {self._limits.sessions} sessions are taken: try again later"
            raise Refused(message, "CAPACITY_REACHED", 503)
        self.open_sessions += 1
        try:
            return await run_in_threadpool(Session, self._make, self._task, self._turn)
        except BaseException:
            self.open_sessions -= 1
            raise

    async def _end(self, session: Session) -> None:
        self.open_sessions -= 1
        await run_in_threadpool(session.close)

    async def _websocket(self, socket: WebSocket) -> None:
        """A connection is a session."""
        await socket.accept()
        try:
            session = await self._open()
        except Refused as refused:
            return await self._leave(socket, refused, _TRY_AGAIN_LATER)
        try:
            await self._talk(socket, session)
        except (WebSocketDisconnect, ConnectionError):
            pass
        except asyncio.TimeoutError:
            idle = Refused(f"the session was idle for {self._limits.idle:g} seconds", "SESSION_ERROR")
            await self._leave(socket, idle, _GOING_AWAY)
        finally:
            # The server may cancel this task when it stops; the environment is closed all the same.
            await asyncio.shield(self._end(session))

    async def _talk(self, socket: WebSocket, session: Session) -> None:
        """Answer messages until the client closes the connection; a client that is silent raises TimeoutError."""
        while True:
            message = await asyncio.wait_for(socket.receive(), self._limits.idle)
            if message["type"] == "websocket.disconnect":
                return
            text = message.get("text")
            if text is None:
                refused = Refused("a message must be text, not bytes", "INVALID_JSON")
                answer: Payload | None = {"type": "error", "data": refused.payload()}
            else:
                answer = await run_in_threadpool(session.answer, text)
            if answer is None:
                return await socket.close()
            await asyncio.wait_for(socket.send_text(written(answer)), self._limits.idle)

    async def _leave(self, socket: WebSocket, why: Refused, code: int) -> None:
        """Send the reason and close, without waiting for a client that does not listen."""
        try:
            farewell = written({"type": "error", "data": why.payload()})
            await asyncio.wait_for(socket.send_text(farewell), 1.0)
            await asyncio.wait_for(socket.close(code), 1.0)
        except (WebSocketDisconnect, ConnectionError, asyncio.TimeoutError, RuntimeError):
            pass

    def _answering(self, handle: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """A route that answers with JSON, whatever comes."""

        async def answer(request: Request) -> Response:
            try:
                payload = await handle(request)
                status = 200
            except Refused as refused:
                reason = refused.payload()
                payload = {"detail": reason["message"], "code": reason["code"]}
                status = refused.status
            return Response(written(payload), status, media_type="application/json")

        return answer

    async def _reset(self, request: Request) -> Payload:
        """Begin an episode: in a new session, or in the one that is named."""
        data = await self._body(request)
        name = data.pop("session", None)
        is_new = name is None
        if is_new:
            name = secrets.token_urlsafe(16)
            self._held[name] = _Held(await self._open())
        try:
            payload = await self._in(name, lambda session: session.reset(data))
        except Refused:
            if is_new:  # the client does not know its name, so nobody could close it
                await self._drop(name)
            raise
        payload["observation"]["session"] = name
        return payload

    async def _step(self, request: Request) -> Payload:
        data = await self._body(request)
        for key in data:
            if key not in _STEP_KEYS:
                raise Refused(f"unknown key {key!r:.80}; known: {', '.join(_STEP_KEYS)}")
        action = data.get("action")
        if not isinstance(action, dict):
            raise Refused(f"action must be an object, got {action!r:.80}")
        name = data.get("session")
        payload = await self._in(name, lambda session: session.step(action))
        payload["observation"]["session"] = name
        return payload

    async def _state(self, request: Request) -> Payload:
        return await self._in(request.query_params.get("session"), lambda session: session.state())

    async def _close(self, request: Request) -> Payload:
        name = (await self._body(request)).get("session")
        self._find(name)
        await self._drop(str(name))
        return {"closed": True}

    async def _body(self, request: Request) -> Payload:
        """Read the JSON object of a request; an empty body is ``{}``."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._limits.message:
                raise Refused(f"a request may have {self._limits.message} bytes", status=413)
        return parse_message(body) if body.strip() else {}

    def _find(self, name: Any) -> _Held:
        held = self._held.get(name) if isinstance(name, str) else None
        if held is None:
            raise Refused("no such session: POST /reset opens one and says its name", "SESSION_ERROR", 404)
        return held

    async def _in(self, name: Any, call: Callable[[Session], Payload]) -> Payload:
        """Do something in a session, and start again to wait for its next request."""
        held = self._find(name)
        # HTTP requests may come in parallel, and an environment takes one action at a time.
        if held.busy.locked():
            raise Refused("the session is answering another request: one at a time", "SESSION_ERROR", 409)
        async with held.busy:
            if held.timer is not None:
                held.timer.cancel()
            try:
                return await run_in_threadpool(call, held.session)
            finally:
                held.timer = asyncio.get_running_loop().call_later(self._limits.idle, self._expire, name)

    def _expire(self, name: str) -> None:
        task = asyncio.ensure_future(self._drop(name))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _drop(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:  # it was closed in the meantime otherwise
            if held.timer is not None:
                held.timer.cancel()
            async with held.busy:
                await self._end(held.session)


class _NotForPages:
    """Refuse requests of pages in a browser, which name the page as their origin. Programs send no origin."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and "origin" in Headers(scope=scope):
            return await Response("Pages of a browser are not answered.\n", 403)(scope, receive, send)
        if scope["type"] == "websocket" and "origin" in Headers(scope=scope):
            await receive()  # the request to connect, before which nothing may be sent
            return await send({"type": "websocket.close", "code": 1008})
        await self._app(scope, receive, send)


def _object(**fields: str) -> Payload:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in fields.items()}}


SCHEMA: Payload = {
    "action": {**_object(text="string", metadata="object"), "required": ["text"], "additionalProperties": False},
    "observation": _object(text="string", terminated="boolean", truncated="boolean", info="object"),
    "state": _object(
        episode_id="string",
        step_count="integer",
        task="string",
        seed="integer",
        running="boolean",
        **{"return": "number"},
    ),
}
"""JSON schemas of what goes over the wire."""
