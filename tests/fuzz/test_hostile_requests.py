"""Hostile requests to a task that ``lmrl serve`` serves: each is answered or refused, and nothing crashes.

Messages are broken JSON, JSON of other forms, wrong types, keys, numbers and texts, too long, or out of turn. Some
bytes are neither HTTP nor a WebSocket frame, and some connections are cut. A request is refused by an error of the
protocol, a status of HTTP from 400 to 499, 503, or a server that closes the connection. It is a fault if the status is
500, an error says that the task failed, an answer has another form, or there is none.

Afterwards an episode must be the one that `lmrl.make` plays, and as many sessions must open as before.
"""

import http.client
import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import pytest

import lmrl
from lmrl.envs.checker import odd_texts
from lmrl.envs.registry import make_policy
from lmrl.rollout import in_order, rollout
from lmrl.types import Start

pytest.importorskip("websockets", reason="needs websockets: pip install 'lmrl[serve]'")
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

TASK = "maze_fo"
SESSIONS = 16
LONGEST = 65_536
PATIENCE = 20.0
"""Seconds that the server has for an answer."""
BATCH = 20
"""Requests over one connection."""
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 3, 2**53, 2**64, 10**300, 1.5, -0.0, 1e308, "", "x", "5", [], [[]], [0] * 99, {}, {"": None},
    {"seed": 1}, {"text": "move up\n"}, "move left\n", "\x00", "\ud800", "é\u202e", "a" * 4000, {"a": {"b": {"c": []}}},
)  # fmt: skip
WORDS = (
    "type", "data", "seed", "options", "text", "action", "metadata", "episode_id", "session", "reset", "step", "state",
    "close", "mcp", "init_position", "goal", "layout", "__class__", "env", "task", "host", "",
)  # fmt: skip


class Outcome(NamedTuple):
    """The reaction of the server to one request."""

    way: str
    what: Literal["answered", "refused", "fault"]
    details: str


# The full size takes three minutes.
@pytest.mark.parametrize(
    "requests",
    [
        pytest.param(300, marks=pytest.mark.slow),
        pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(1_200)]),
    ],
)
def test_hostile_requests_are_answered_and_nothing_crashes(requests: int) -> None:
    with served() as url:
        outcomes = list(try_requests(url, requests, Random(1)))
        assert is_unharmed(url)
    assert [outcome for outcome in outcomes if outcome.what == "fault"] == []
    assert {outcome.way for outcome in outcomes} == {"messages", "http", "frames", "bytes"}
    counts = Counter(outcome.what for outcome in outcomes)
    assert counts["refused"] > requests / 2
    assert counts["answered"] > requests / 15


@contextmanager
def served() -> Iterator[str]:
    """Serve the task by the command, in a process of its own, and yield the address."""
    limits = ["--sessions", str(SESSIONS), "--message-bytes", str(LONGEST), "--idle", "5"]
    command = [sys.executable, "-m", "lmrl", "serve", TASK, "--port", "0", *limits]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
            assert process.poll() is None, "the server is gone"
        finally:
            process.terminate()


def try_requests(url: str, count: int, rng: Random) -> Iterator[Outcome]:
    ways = (messages, messages, over_http, broken_frames, broken_http)
    sent = 0
    while sent < count:
        for outcome in rng.choice(ways)(url, rng):
            yield outcome
            sent += 1
            if sent == count:
                return


def is_unharmed(url: str) -> bool:
    """Return whether the server plays like `lmrl.make`, and all of its sessions are free."""
    policy = make_policy(TASK, "random")
    starts = [Start(seed) for seed in range(3)]
    here = in_order(rollout(policy, partial(lmrl.make, TASK), starts, task=TASK))
    there = in_order(rollout(policy, partial(lmrl.make, f"openenv:{url}"), starts, task=TASK))
    with ExitStack() as stack:
        for _ in range(SESSIONS):
            env = lmrl.make(f"openenv:{url}")
            stack.callback(env.close)
            env.reset(seed=0)  # raises if there is no session left
    for ours, theirs in zip(here, there, strict=True):
        if (ours.observations, ours.actions, ours.rewards) != (theirs.observations, theirs.actions, theirs.rewards):
            return False
    return True


def messages(url: str, rng: Random) -> Iterator[Outcome]:
    """Send the messages of a session, some of them correct."""
    address = f"ws{url.removeprefix('http')}/ws"
    with connect(address, open_timeout=PATIENCE, close_timeout=1) as connection:
        for _ in range(BATCH):
            message = random_message(rng)
            try:
                connection.send(message)
                text = connection.recv(timeout=PATIENCE)
            except WebSocketException as error:  # closed on request, or because the message was too long
                yield Outcome("messages", "refused", str(error))
                return
            except TimeoutError:
                yield Outcome("messages", "fault", f"no answer to {message[:80]!r}")
                return
            yield Outcome("messages", judge(json.loads(text)), f"{message[:80]!r}: {text[:120]!r}")


def judge(answer: dict[str, Any]) -> Literal["answered", "refused", "fault"]:
    if answer["type"] == "error":
        return "fault" if "the task failed" in answer["data"]["message"] else "refused"
    return "answered" if answer["type"] in ("observation", "state") else "fault"


def random_message(rng: Random) -> str | bytes:
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
    text = json.dumps(random_request(rng))
    if kind == 4:  # cut off, or with another letter
        index = rng.randrange(len(text))
        return text[:index] if rng.random() < 0.5 else text[:index] + rng.choice('{}[]",:x') + text[index + 1 :]
    return text


def random_request(rng: Random) -> Any:
    kind = rng.choice(("reset", "step", "state", "close") if rng.random() < 0.05 else ("reset", "step", "state"))
    texts = list(odd_texts(("move up\n", "move left\n"), 60, rng.randrange(10**6)))
    right = {"reset": {"seed": rng.randrange(100)}, "step": {"text": rng.choice(texts)[:9_000]}}.get(kind, {})
    if rng.random() < 0.3:
        return {"type": kind, "data": right}
    if rng.random() < 0.5:
        options = {rng.choice(WORDS): rng.choice(VALUES) for _ in range(rng.randrange(3))}
        return {"type": "reset", "data": {"seed": rng.choice((0, rng.choice(VALUES))), "options": options}}
    return {rng.choice(("type", rng.choice(WORDS))): rng.choice((kind, rng.choice(VALUES))), "data": random_data(rng)}


def random_data(rng: Random) -> Any:
    if rng.random() < 0.2:
        return rng.choice(VALUES)
    return {rng.choice(WORDS): rng.choice(VALUES) for _ in range(rng.randrange(4))}


def over_http(url: str, rng: Random) -> Iterator[Outcome]:
    """Send messages to all paths of HTTP by all methods."""
    paths = ("/reset", "/step", "/state", "/close", "/schema", "/health", "/ws", "/mcp", "/../x", "/%00")
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE)
    try:
        for _ in range(BATCH):
            path = rng.choice(paths)
            method = rng.choice(("GET", "POST", "POST", "POST", "PUT", "OPTIONS"))
            message = random_message(rng) if rng.random() < 0.5 else json.dumps(random_data(rng))
            body = message.encode("utf-8", "replace") if isinstance(message, str) else message
            query = f"?session={rng.choice(WORDS)}" if rng.random() < 0.2 else ""
            try:
                connection.request(method, path + query, body)
                response = connection.getresponse()
                content = response.read()
            except (http.client.HTTPException, ConnectionError) as error:
                yield Outcome("http", "refused", repr(error))
                return
            except TimeoutError:
                yield Outcome("http", "fault", f"no answer to {method} {path} {body[:80]!r}")
                return
            details = f"{method} {path} {body[:80]!r}: {response.status} {content[:120]!r}"
            if response.status < 400:
                yield Outcome("http", "answered", details)
            elif response.status < 500 or response.status == 503:
                yield Outcome("http", "refused", details)
            else:
                yield Outcome("http", "fault", details)
            end_session(url, content)
    finally:
        connection.close()


def end_session(url: str, content: bytes) -> None:
    """End the session that a response has begun, if any, so that all requests find room."""
    try:
        name = json.loads(content)["observation"]["session"]
    except (ValueError, KeyError, TypeError):
        return
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=PATIENCE)
    connection.request("POST", "/close", json.dumps({"session": name}))
    connection.getresponse().read()
    connection.close()


UPGRADE = (
    "GET /ws HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def broken_frames(url: str, rng: Random) -> Iterator[Outcome]:
    """Open a WebSocket and send bytes that are no frame, or a part of one."""
    upgrade = UPGRADE.format(urlsplit(url).netloc).encode()
    head = bytes([rng.randrange(256), rng.choice((0, 5, 126, 127, 128, 133, 254, 255))])
    yield send_bytes(url, "frames", upgrade, head + rng.randbytes(rng.randrange(80)))


def broken_http(url: str, rng: Random) -> Iterator[Outcome]:
    """Send bytes that are no HTTP, or not all of it."""
    upgrade = UPGRADE.format(urlsplit(url).netloc).encode()
    kind = rng.randrange(4)
    if kind == 0:
        sent = rng.randbytes(rng.randrange(1, 300))
    elif kind == 1:
        sent = upgrade[: rng.randrange(1, len(upgrade))]
    elif kind == 2:
        sent = b"POST /reset HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n{" % rng.choice((2, 10**9, 10**30))
    else:
        sent = upgrade.replace(rng.choice((b"websocket", b"13", b"dGhl", b"Host")), rng.randbytes(3), 1)
    yield send_bytes(url, "bytes", sent)


def send_bytes(url: str, way: str, *parts: bytes) -> Outcome:
    """Send bytes, shut the sending side down, and read what the server answers before it closes."""
    address = urlsplit(url)
    with socket.create_connection((str(address.hostname), address.port or 80), timeout=PATIENCE) as raw:
        try:
            for part in parts:
                raw.sendall(part)
                if part is not parts[-1]:
                    raw.recv(4096)
            raw.shutdown(socket.SHUT_WR)
            content = raw.recv(4096)
        except ConnectionError as error:
            return Outcome(way, "refused", repr(error))
        except TimeoutError:
            return Outcome(way, "fault", f"no answer to {parts[-1][:80]!r}")
    fault = content.startswith(b"HTTP/1.1 500")
    return Outcome(way, "fault" if fault else "refused", f"{parts[-1][:80]!r}: {content[:80]!r}")
