"""The server behind the page: it hands out the page and plays the games that the page asks for."""

import json
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from lmrl.envs import registry
from lmrl.errors import UserError
from lmrl.play.access import OwnRequests, is_token
from lmrl.play.game import PERSON, Game, Offer, Order, read_moves
from lmrl.report.pages import page_parts, printable, render_page

__all__ = ["make_app"]

_SCRIPTS = ("words.js", "web_seat.js", "web_page.js")
_TOKEN = "x-lmrl-session"
"""A header: unlike a cookie it goes to this port alone, and no page from elsewhere can make a browser send it."""
_MOST_GAMES = 64
"""Games kept in memory; those with the same models share them."""
_MOST_BYTES = 1 << 16
"""The largest body of a request, in bytes."""
_CLOSED = "Open the whole address that lmrl web printed."
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
    "img-src data:; style-src 'unsafe-inline'; script-src {}"
)


def make_app(offer: Offer, token: str, names: Iterable[str] = ()) -> ASGIApp:
    """Return the application.

    The page itself is part of the package and is given to everybody. All other routes need the token, which other users
    of the machine and other pages of the browser do not have.

    Args:
        offer: what the page may choose.
        token: the secret of the printed address.
        names: names of this machine, see `lmrl.play.access.OwnRequests`.
    """
    games = _Games(offer)
    routes = [Route("/", _page(offer)), Route("/open", _opening(token), methods=["POST"])]
    for work in (games.offer, games.new, games.replay, games.step, games.advice):
        routes.append(Route(f"/{work.__name__}", _answering(token, work), methods=["POST"]))
    handlers = {UserError: _refused, ClientDisconnect: _gone, Exception: _failed}
    return OwnRequests(Starlette(routes=routes, exception_handlers=handlers), names)


class _Games:
    """The running games by number. One request at a time works on them, since players share a machine."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        # The games in the order in which they were last used.
        self._games: dict[int, Game] = {}
        self._count = 0
        self._lock = Lock()

    def offer(self, request: Any) -> dict[str, Any]:
        return self._offer.describe()

    def new(self, request: Any) -> dict[str, Any]:
        return self._begin(self._offer.check(Order.read(request)), ())

    def replay(self, request: Any) -> dict[str, Any]:
        """A shared game: an order like any other, of a person alone, and the moves that they typed."""
        if not isinstance(request, dict) or set(request) != {"order", "moves"}:
            raise UserError(f"a shared game has the fields order, moves, got {request!r:.200}")
        order = self._offer.check(Order.read(request["order"]), shared=True)
        moves = read_moves(request["moves"])
        if [*order.policies, order.advisor] != [PERSON, ""]:
            raise UserError("a shared game has one player, who is human, and no advisor")
        return self._begin(order, moves)

    def _begin(self, order: Order, moves: Sequence[str]) -> dict[str, Any]:
        with self._lock:
            game = Game(order, self._offer.chat)
            try:
                game.replay(moves)
            except Exception:
                game.close()
                raise
            if len(self._games) >= _MOST_GAMES:
                least_recent = next(iter(self._games))
                self._games.pop(least_recent).close()
            self._count += 1
            self._games[self._count] = game
            return {"game": self._count, "first_moves": game.first_moves, **game.state()}

    def step(self, request: Any) -> dict[str, Any]:
        with self._lock:
            game = self._find(request)
            typed = request.get("action")
            if not isinstance(typed, str | None):
                raise UserError(f"action must be a text, got {typed!r:.80}")
            game.check_slip(typed)
            game.step(typed)
            return {"game": request["game"], **game.state()}

    def advice(self, request: Any) -> dict[str, Any]:
        with self._lock:
            return self._find(request).advice()

    def _find(self, request: Any) -> Game:
        number = request.get("game") if isinstance(request, dict) else None
        if not isinstance(number, int) or number not in self._games:
            raise UserError("this game is no longer there: begin another one")
        game = self._games.pop(number)
        self._games[number] = game  # now the last in the order of use
        return game


async def _body(request: Request) -> Any:
    """Return the data of a request."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise UserError("the request is not JSON")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _MOST_BYTES:
            raise UserError(f"the request is longer than {_MOST_BYTES} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UserError("the request is not JSON") from error


def _opening(token: str) -> Callable[[Request], Any]:
    """Let the page find out whether the token of its address is right before it keeps it for its requests."""

    async def answer(request: Request) -> Response:
        body = await _body(request)
        key = body.get("key") if isinstance(body, dict) else None
        if not isinstance(key, str) or not is_token(key, token):
            return JSONResponse({"error": _CLOSED}, 403)
        return JSONResponse({"session": token})

    return answer


def _answering(token: str, work: Callable[[Any], dict[str, Any]]) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        if not is_token(request.headers.get(_TOKEN, ""), token):
            return JSONResponse({"error": _CLOSED}, 403)
        # Playing takes long, so it runs in a thread.
        return JSONResponse(await run_in_threadpool(work, await _body(request)))

    return answer


def _page(offer: Offer) -> Callable[[Request], Response]:
    parts = page_parts("lmrl.play", registry.pictures(registry.tasks()), *_SCRIPTS)
    page = render_page("lmrl.play", "web.html.j2", {"tasks": [*offer.tasks()], **parts})
    headers = {"Content-Security-Policy": _POLICY.format(parts["script_hashes"])}
    return lambda request: HTMLResponse(page, headers=headers)


def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": printable(str(error))}, 400)


def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # the client has left, so nothing receives it


def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": printable(f"{type(error).__name__}: {error}")}, 500)
