"""The server behind the page: it hands out the page and plays the games that the page asks for."""

import secrets
from collections.abc import Callable
from dataclasses import asdict
from threading import Lock
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from lmrl.behaviours import policy_names
from lmrl.commands.web_game import Game, Order
from lmrl.envs import registration
from lmrl.errors import UserError
from lmrl.evaluation.rendering import embedded, render_page, script

__all__ = ["make_app"]

_SCRIPTS = ("pictures.js", "web_seat.js", "web_page.js")
_GAMES = 8
"""So many are kept; the one that began first makes room."""
_HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
    "img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"
)


def make_app(first: Order, key: str) -> Starlette:
    """The application.

    Args:
        first: what the page asks for when it opens.
        key: every request has to name it (``?key=...``): other users of the machine and other pages of the browser do
            not know it.
    """
    games, page = _Games(), _page(first)
    routes = [Route("/", page)]
    for path, work in (("/new", games.new), ("/step", games.step), ("/advice", games.advice)):
        routes.append(Route(path, _answering(work), methods=["POST"]))
    handlers = {UserError: _refused, Exception: _failed}
    return Starlette(routes=routes, middleware=[Middleware(_Locked, key=key)], exception_handlers=handlers)


class _Games:
    """The running games by number; one thing at a time, since players share a machine."""

    def __init__(self) -> None:
        self._games: dict[int, Game] = {}
        self._count = 0
        self._lock = Lock()

    def new(self, told: Any) -> dict[str, Any]:
        with self._lock:
            game = Game(Order.read(told))
            self._count += 1
            self._games[self._count] = game
            if len(self._games) > _GAMES:
                self._games.pop(min(self._games)).close()
            return {"game": self._count, **game.state()}

    def step(self, told: Any) -> dict[str, Any]:
        with self._lock:
            game, typed = self._find(told), told.get("action")
            if not isinstance(typed, str | None):
                raise UserError(f"action must be a text, got {typed!r:.80}")
            game.step(typed)
            return {"game": told["game"], **game.state()}

    def advice(self, told: Any) -> dict[str, Any]:
        with self._lock:
            return self._find(told).advice()

    def _find(self, told: Any) -> Game:
        number = told.get("game") if isinstance(told, dict) else None
        if not isinstance(number, int) or number not in self._games:
            raise UserError("this game is no longer there: begin another one")
        return self._games[number]


def _answering(work: Callable[[Any], dict[str, Any]]) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        try:
            told = await request.json()
        except ValueError as error:
            raise UserError("the request is not JSON") from error
        return JSONResponse(await run_in_threadpool(work, told), headers=_HEADERS)

    return answer


def _page(first: Order) -> Callable[[Request], Response]:
    scripts = script(*_SCRIPTS)
    tasks = {
        row.name: {"description": row.description, "players": [*policy_names(row.name)]}
        for row in registration.tasks().values()
    }
    data = embedded({"tasks": tasks, "first": asdict(first)})
    page = render_page("web.html.j2", {"tasks": tasks, "data": data, **scripts})
    headers = {**_HEADERS, "Content-Security-Policy": _POLICY.format(scripts["script_hash"])}
    return lambda request: HTMLResponse(page, headers=headers)


def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400, _HEADERS)


def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 500, _HEADERS)


class _Locked:
    """Answers nobody who does not name the key."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            named = Request(scope).query_params.get("key", "")
            if not secrets.compare_digest(named.encode(), self._key):
                refusal = PlainTextResponse("Open the whole address that lmrl web printed.\n", 403, _HEADERS)
                return await refusal(scope, receive, send)
        await self._app(scope, receive, send)
