"""Ten thousand hostile requests to a task that ``lmrl serve`` hands out: each is answered, and nothing crashes.

Messages are broken JSON, JSON of other forms, wrong types, keys, numbers and texts, too long, out of turn; bytes that
are neither HTTP nor a WebSocket frame; connections that are cut. What happens to one is

- answered: an observation or a state, where there was nothing wrong with it after all;
- refused: an error of the protocol, a status of HTTP from 400 to 499, 503, or a connection that the server closes;
- a fault: a status of 500, an error that says that the task failed, an answer of another form, or none.

At last an episode must be what `lmrl.make` plays, and as many sessions must open as before.
"""

import http.client
import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any
from urllib.parse import urlsplit

import lmrl
from benchmarks.row import Row
from lmrl.envs.checker import odd_texts
from lmrl.envs.registry import make_policy
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.types import Start

with suppress(ImportError):  # `run` says so; the other benchmarks do not need it
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect

__all__ = ["Outcome", "is_whole", "run", "served", "try_requests"]

REQUESTS, TASK, SESSIONS, LONGEST = 10_000, "maze_fo", 16, 65_536
_PATIENCE = 20.0
_BATCH = 20
"""Requests over one connection."""
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**53, 2**64, 10**300, 1.5, -0.0, 1e308, "", "x", "5", [], [[]], [0] * 99, {}, {"": None},
    {"seed": 1}, {"text": "move up\n"}, "move left\n", "\x00", "\ud800", "é\u202e", "a" * 4000, {"a": {"b": {"c": []}}},
)  # fmt: skip
_WORDS = (
    "type", "data", "seed", "options", "text", "action", "metadata", "episode_id", "session", "reset", "step", "state",
    "close", "mcp", "init_position", "goal", "layout", "__class__", "env", "task", "host", "",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What happened to one request."""

    way: str
    what: str
    """``answered``, ``refused`` or ``fault``."""
    said: str


def run(requests: int = REQUESTS, seed: int = 0) -> Iterator[Row]:
    """Send, and count."""
    if "connect" not in globals():
        raise UserError("hostile needs websockets: pip install 'lmrl[serve]'")
    found: Counter[tuple[str, str]] = Counter()
    with served() as url:
        for outcome in try_requests(url, requests, seed):
            found[outcome.way, outcome.what] += 1
            if outcome.what == "fault":
                print(f"FAULT {outcome.way}: {outcome.said}", flush=True)
        whole = is_whole(url)
    for way in dict.fromkeys(way for way, _ in found):
        its = {what: count for (other, what), count in found.items() if other == way}
        shown = ", ".join(f"{count} {what}" for what, count in sorted(its.items()))
        yield Row(f"{way}: refused", its.get("refused", 0), shown=f"of {sum(its.values())}: {shown}")
    yield Row("all requests", sum(found.values()), "requests")
    yield Row("faults", sum(n for (_, what), n in found.items() if what == "fault") + (not whole), "", "lower", "0")


@contextmanager
def served(*words: str) -> Iterator[str]:
    """The address of a task that the command serves in a process of its own."""
    limits = ["--sessions", str(SESSIONS), "--message-bytes", str(LONGEST), "--idle", "5"]
    command = [sys.executable, "-m", "lmrl", "serve", TASK, "--port", "0", *limits, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
            assert process.poll() is None, "the server is gone"
        finally:
            process.terminate()


def try_requests(url: str, count: int, seed: int) -> Iterator[Outcome]:
    """Send so many requests; the same ones for the same seed."""
    ways = (_messages, _messages, _over_http, _raw_frames, _no_http)
    rng, sent = Random(seed), 0
    while sent < count:
        for outcome in rng.choice(ways)(url, rng):
            yield outcome
            sent += 1
            if sent == count:
                return


def is_whole(url: str) -> bool:
    """Whether the server plays as before, and no session has stayed."""
    policy, starts = make_policy(TASK, "random"), [Start(seed) for seed in range(3)]
    alike = [
        [(e.observations, e.actions, e.rewards) for e in in_order(rollout(policy, make, starts, task=TASK))]
        for make in (partial(lmrl.make, TASK), partial(lmrl.make, f"openenv:{url}"))
    ]
    with ExitStack() as stack:
        for _ in range(SESSIONS):
            env = lmrl.make(f"openenv:{url}")
            stack.callback(env.close)
            env.reset(seed=0)
    return alike[0] == alike[1]


def _messages(url: str, rng: Random) -> Iterator[Outcome]:
    """Messages of a session, some of them right."""
    base = f"ws{url.removeprefix('http')}/ws"
    with connect(base, open_timeout=_PATIENCE, close_timeout=1) as socket_:
        for _ in range(_BATCH):
            message = _message(rng)
            try:
                socket_.send(message)
                said = socket_.recv(timeout=_PATIENCE)
            except WebSocketException as error:  # closed: it was asked to, or the message was too long
                yield Outcome("messages", "refused", str(error))
                return
            except TimeoutError:
                yield Outcome("messages", "fault", f"no answer to {message[:80]!r}")
                return
            yield Outcome("messages", _judged(said), f"{message[:80]!r}: {said[:120]!r}")


def _judged(said: str | bytes) -> str:
    answer = json.loads(said)
    if answer["type"] == "error":
        return "fault" if "the task failed" in answer["data"]["message"] else "refused"
    return "answered" if answer["type"] in ("observation", "state") else "fault"


def _message(rng: Random) -> str | bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.randrange(40))
    if kind == 1:
        return "".join(next(odd_texts((), 1, rng.randrange(10**6))) for _ in range(rng.randrange(3)))
    if kind == 2:
        return rng.choice(
            ["[" * 30_000, "1" * 9_000, '{"a":' * 9_000, "NaN", '{"type": "reset", "data": {"seed": NaN}}']
        )
    if kind == 3 and rng.random() < 0.1:
        return json.dumps({"type": "step", "data": {"text": "a" * (LONGEST + 1)}})
    whole = json.dumps(_request(rng))
    if kind == 4:  # cut or with another letter
        place = rng.randrange(len(whole))
        return whole[:place] if rng.random() < 0.5 else whole[:place] + rng.choice('{}[]",:x') + whole[place + 1 :]
    return whole


def _request(rng: Random) -> Any:
    kind = rng.choice(("reset", "step", "state", "close") if rng.random() < 0.05 else ("reset", "step", "state"))
    texts = list(odd_texts(("move up\n", "move left\n"), 60, rng.randrange(10**6)))
    right = {"reset": {"seed": rng.randrange(100)}, "step": {"text": rng.choice(texts)[:9_000]}}.get(kind, {})
    if rng.random() < 0.3:
        return {"type": kind, "data": right}
    if rng.random() < 0.5:
        options = {rng.choice(_WORDS): rng.choice(_VALUES) for _ in range(rng.randrange(3))}
        return {"type": "reset", "data": {"seed": rng.choice((0, rng.choice(_VALUES))), "options": options}}
    return {rng.choice(("type", rng.choice(_WORDS))): rng.choice((kind, rng.choice(_VALUES))), "data": _data(rng)}


def _data(rng: Random) -> Any:
    if rng.random() < 0.2:
        return rng.choice(_VALUES)
    return {rng.choice(_WORDS): rng.choice(_VALUES) for _ in range(rng.randrange(4))}


def _over_http(url: str, rng: Random) -> Iterator[Outcome]:
    """The same over HTTP, to all addresses and by all methods."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=_PATIENCE)
    try:
        for _ in range(_BATCH):
            path = rng.choice(
                ("/reset", "/step", "/state", "/close", "/schema", "/health", "/ws", "/mcp", "/../x", "/%00")
            )
            method = rng.choice(("GET", "POST", "POST", "POST", "PUT", "OPTIONS"))
            message = _message(rng) if rng.random() < 0.5 else json.dumps(_data(rng))
            body = message.encode("utf-8", "replace") if isinstance(message, str) else message
            query = f"?session={rng.choice(_WORDS)}" if rng.random() < 0.2 else ""
            try:
                connection.request(method, path + query, body)
                answer = connection.getresponse()
                said = answer.read()
            except (http.client.HTTPException, ConnectionError) as error:
                yield Outcome("http", "refused", repr(error))
                return
            except TimeoutError:
                yield Outcome("http", "fault", f"no answer to {method} {path} {body[:80]!r}")
                return
            what = (
                "answered"
                if answer.status < 400
                else "refused"
                if answer.status < 500 or answer.status == 503
                else "fault"
            )
            yield Outcome("http", what, f"{method} {path} {body[:80]!r}: {answer.status} {said[:120]!r}")
            _closed(url, said)
    finally:
        connection.close()


def _closed(url: str, said: bytes) -> None:
    """End a session that has begun, so that all requests find room."""
    try:
        name = json.loads(said)["observation"]["session"]
    except (ValueError, KeyError, TypeError):
        return
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=_PATIENCE)
    connection.request("POST", "/close", json.dumps({"session": name}))
    connection.getresponse().read()
    connection.close()


_UPGRADE = (
    "GET /ws HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def _raw_frames(url: str, rng: Random) -> Iterator[Outcome]:
    """What is no frame of a WebSocket, behind a right beginning; or the connection is cut."""
    head = bytes([rng.randrange(256), rng.choice((0, 5, 126, 127, 128, 133, 254, 255))])
    yield _bytes_to(
        url, "frames", _UPGRADE.format(urlsplit(url).netloc).encode(), head + rng.randbytes(rng.randrange(80))
    )


def _no_http(url: str, rng: Random) -> Iterator[Outcome]:
    """What is no HTTP, or not all of it."""
    whole = _UPGRADE.format(urlsplit(url).netloc).encode()
    kind = rng.randrange(4)
    if kind == 0:
        sent = rng.randbytes(rng.randrange(1, 300))
    elif kind == 1:
        sent = whole[: rng.randrange(1, len(whole))]
    elif kind == 2:
        sent = b"POST /reset HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{" % rng.choice((2, 10**9, 10**30))
    else:
        sent = whole.replace(rng.choice((b"websocket", b"13", b"dGhl", b"Host")), rng.randbytes(3), 1)
    yield _bytes_to(url, "bytes", sent)


def _bytes_to(url: str, way: str, *parts: bytes) -> Outcome:
    """Send bytes, say that no more will come, and read until the server has closed, or for a moment."""
    place = urlsplit(url)
    with socket.create_connection((str(place.hostname), place.port or 80), timeout=_PATIENCE) as raw:
        try:
            for part in parts:
                raw.sendall(part)
                if part is not parts[-1]:
                    raw.recv(4096)
            raw.shutdown(socket.SHUT_WR)
            said = raw.recv(4096)
        except ConnectionError as error:
            return Outcome(way, "refused", repr(error))
        except TimeoutError:
            return Outcome(way, "fault", f"no answer to {parts[-1][:80]!r}")
    fault = said.startswith(b"HTTP/1.1 500")
    return Outcome(way, "fault" if fault else "refused", f"{parts[-1][:80]!r}: {said[:80]!r}")
