"""The server behind the page: it hands out the page and plays the games that the page asks for."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
from lmrl.play.access import Keys, OwnRequests
from lmrl.play.game import PERSON, Game, Offer, Order, read_moves
from lmrl.report.pages import page_parts, printable, render_page

__all__ = ["make_app"]

_SCRIPTS = ("words.js", "web_seat.js", "web_page.js")
_SESSION = "x-lmrl-session"
"""A header: unlike a cookie it goes to this port alone, and no page from elsewhere can make a browser send it."""
_GAMES = 8
"""So many are kept for a session; the one of it that began first makes room."""
_ALL_GAMES = 64
"""So many are kept in all, since each has players of its own in memory."""
_IDLE = 1800.0
"""Seconds without a request after which a game makes room for those of other sessions."""
_MOST_BYTES = 1 << 16
"""Of a request's body."""
_CLOSED = "Open the whole address that lmrl web printed; each opens the page once."
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; connect-src 'self'; "
    "img-src data:; style-src 'unsafe-inline'; script-src {}"
)


def make_app(offer: Offer, keys: Keys, names: Iterable[str] = ()) -> ASGIApp:
    """The application.

    The page itself holds nothing that is not in the package and is given to everybody. All else is for sessions: other
    users of the machine and other pages of the browser have none.

    Args:
        offer: what the page may choose.
        keys: what opens a session.
        names: of this machine, see `lmrl.play.access.OwnRequests`.
    """
    games = _Games(offer)
    routes = [Route("/", _page()), Route("/open", _opening(keys), methods=["POST"])]
    for work in (games.offer, games.new, games.replay, games.step, games.advice):
        routes.append(Route(f"/{work.__name__}", _answering(keys, work), methods=["POST"]))
    handlers = {UserError: _refused, ClientDisconnect: _gone, Exception: _failed}
    # Around all of it, so that what failed is answered with the same headers.
    return OwnRequests(Starlette(routes=routes, exception_handlers=handlers), names)


@dataclass(slots=True)
class _Running:
    """A game, the session that plays it, and when it was last asked for, on the clock `time.monotonic`."""

    session: str
    game: Game
    used: float


class _Games:
    """The running games by number; one thing at a time, since players share a machine.

    A session sees its own games alone, and no other one can end them.
    """

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._games: dict[int, _Running] = {}
        self._count = 0
        self._lock = Lock()

    def offer(self, session: str, told: Any) -> dict[str, Any]:
        return self._offer.describe()

    def new(self, session: str, told: Any) -> dict[str, Any]:
        return self._begin(session, self._offer.check(Order.read(told)), ())

    def replay(self, session: str, told: Any) -> dict[str, Any]:
        """A shared game: an order like any other, of a person alone, and the moves that they typed."""
        if not isinstance(told, dict) or set(told) != {"order", "moves"}:
            raise UserError(f"a shared game has the fields order, moves, got {told!r:.200}")
        order = self._offer.check(Order.read(told["order"]), shared=True)
        moves = read_moves(told["moves"])
        if [*order.policies, order.advisor] != [PERSON, ""]:
            raise UserError("a shared game has one player, who is human, and no advisor")
        return self._begin(session, order, moves)

    def _begin(self, session: str, order: Order, moves: Sequence[str]) -> dict[str, Any]:
        with self._lock:
            leaving = self._leaving(session)
            game = Game(order, self._offer.chat)
            try:
                game.replay(moves)
            except Exception:
                game.close()
                raise
            if leaving is not None:
                self._games.pop(leaving).game.close()
            self._count += 1
            self._games[self._count] = _Running(session, game, time.monotonic())
            return {"game": self._count, **game.state()}

    def _leaving(self, session: str) -> int | None:
        """Return the number of the game that makes room for another one of a session; None if there is room.

        Raises:
            UserError: there is no room, and the session has no game of its own that could make it.
        """
        own = [number for number, running in self._games.items() if running.session == session]
        if len(own) < _GAMES and len(self._games) < _ALL_GAMES:
            return None
        if own:
            return own[0]
        number = min(self._games, key=lambda number: self._games[number].used)
        if time.monotonic() - self._games[number].used < _IDLE:
            raise UserError(
                f"{_ALL_GAMES} games are being played here, and there is no room for another one: try again later"
            )
        return number

    def step(self, session: str, told: Any) -> dict[str, Any]:
        with self._lock:
            game = self._find(session, told)
            typed = told.get("action")
            if not isinstance(typed, str | None):
                raise UserError(f"action must be a text, got {typed!r:.80}")
            game.step(typed)
            return {"game": told["game"], **game.state()}

    def advice(self, session: str, told: Any) -> dict[str, Any]:
        with self._lock:
            return self._find(session, told).advice()

    def _find(self, session: str, told: Any) -> Game:
        number = told.get("game") if isinstance(told, dict) else None
        running = self._games.get(number) if isinstance(number, int) else None
        if running is None or running.session != session:
            raise UserError("this game is no longer there: begin another one")
        running.used = time.monotonic()
        return running.game


async def _told(request: Request) -> Any:
    """Return the data of a request.

    Raises:
        UserError: it is not JSON, or too long.
    """
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


def _opening(keys: Keys) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        told = await _told(request)
        key = told.get("key") if isinstance(told, dict) else None
        session = keys.open(key) if isinstance(key, str) else None
        return JSONResponse({"error": _CLOSED}, 403) if session is None else JSONResponse({"session": session})

    return answer


def _answering(keys: Keys, work: Callable[[str, Any], dict[str, Any]]) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        session = request.headers.get(_SESSION, "")
        if not keys.knows(session):
            return JSONResponse({"error": _CLOSED}, 403)
        return JSONResponse(await run_in_threadpool(work, session, await _told(request)))

    return answer


def _page() -> Callable[[Request], Response]:
    parts = page_parts("lmrl.play", registry.pictures(registry.tasks()), *_SCRIPTS)
    page = render_page("lmrl.play", "web.html.j2", {"tasks": [*registry.tasks()], **parts})
    headers = {"Content-Security-Policy": _POLICY.format(parts["script_hashes"])}
    return lambda request: HTMLResponse(page, headers=headers)


def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": printable(str(error))}, 400)


def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # which nobody gets


def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": printable(f"{type(error).__name__}: {error}")}, 500)
