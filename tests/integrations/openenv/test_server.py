"""The server over real connections: transcripts, sessions side by side, limits, and who is not answered."""

import asyncio
import http.client
import json
import os
import socket
import threading
import time
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("websockets")
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

import lmrl
from lmrl.data.records import record_from_episode
from lmrl.envs.registry import BENCHMARK, make_policy
from lmrl.errors import UserError
from lmrl.integrations.openenv import Limits
from lmrl.rollout import in_order, rollout
from lmrl.types import Start
from tests.helpers.cases import cases
from tests.helpers.served import serving

SEEDS = int(os.environ.get("LMRL_SERVED_SEEDS", "3"))
"""The number of seeds of each task; 100 for the figure of the documentation."""


def socket_of(url: str) -> Any:
    return connect(f"ws{url.removeprefix('http')}/ws")


def asked(connection: Any, kind: str, **data: Any) -> Any:
    connection.send(json.dumps({"type": kind, "data": data} if kind != "state" else {"type": kind}))
    return json.loads(connection.recv(timeout=10))


def posted(url: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=10)
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    connection.request("GET" if body is None else "POST", path, raw or None, headers)
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    return answer.status, json.loads(said) if said[:1] == b"{" else said.decode()


def played(name: str, task: str) -> list[Any]:
    """Return what the random policy has seen and earned there."""
    starts = [Start(seed) for seed in range(SEEDS)]
    policy = make_policy(task, "random")
    episodes = in_order(rollout(policy, partial(lmrl.make, name), starts, task=task, slots=3))
    return [json.loads(json.dumps(record_from_episode(episode))) for episode in episodes]


@cases("task", [row.name for row in BENCHMARK])
def test_transcripts_are_those_of_make(task: str) -> None:
    with serving(task) as url:
        over_there = played(f"openenv:{url}", task)
    assert len(over_there) == SEEDS and over_there == played(task, task)


def test_64_sessions_side_by_side_do_not_meet() -> None:
    """All sessions are open at once and take turns."""

    async def ask(connection: Any, message: Any) -> str:
        await connection.send(json.dumps(message))
        text: str = json.loads(await connection.recv())["data"]["observation"]["text"]
        return text

    async def play_all(url: str) -> list[list[str]]:
        all_of_them = [await connect_async(f"ws{url.removeprefix('http')}/ws") for _ in range(64)]
        resets = [{"type": "reset", "data": {"seed": seed}} for seed in range(64)]
        rounds = [await asyncio.gather(*map(ask, all_of_them, resets))]
        for _ in range(4):
            rounds.append(await asyncio.gather(*map(ask, all_of_them, [_MOVE] * 64)))
        for connection in all_of_them:
            await connection.close()
        return [list(texts) for texts in zip(*rounds, strict=True)]

    with serving("maze_fo", Limits(sessions=64)) as url:
        heard = asyncio.run(play_all(url))
    env = lmrl.make("maze_fo")
    for seed, texts in enumerate(heard):
        assert texts == [env.reset(seed=seed)[0], *[env.step("move up\n")[0] for _ in range(4)]]


_MOVE = {"type": "step", "data": {"text": "move up\n"}}


def test_one_session_too_many_is_refused_until_another_ends() -> None:
    with serving("maze_fo", Limits(sessions=1)) as url:
        with socket_of(url) as first:
            assert asked(first, "reset", seed=0)["type"] == "observation"
            with socket_of(url) as second:
                refused = json.loads(second.recv(timeout=10))["data"]
                assert refused["code"] == "CAPACITY_REACHED" and "all 1 sessions are taken" in refused["message"]
                with pytest.raises(ConnectionClosed):
                    second.recv(timeout=10)
            assert posted(url, "/reset", {})[0] == 503
            assert asked(first, "state")["data"]["running"]
        assert _in_time(lambda: posted(url, "/reset", {})[0] == 200)


def _in_time(true: Any, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < end:
        time.sleep(0.02)
    return bool(found)


def test_an_idle_session_is_closed_and_its_environment_with_it() -> None:
    closed: list[str] = []

    def made() -> Any:
        env = lmrl.make("maze_fo")
        env.close = lambda: closed.append("closed")  # type: ignore[method-assign]
        return env

    with serving("maze_fo", Limits(sessions=2, idle=0.3), made) as url, socket_of(url) as connection:
        name = posted(url, "/reset", {"seed": 0})[1]["observation"]["session"]
        for _ in range(4):  # a session that is used in time stays open
            time.sleep(0.1)
            assert asked(connection, "reset", seed=0)["type"] == "observation"
            assert posted(url, f"/state?session={name}")[0] == 200
        assert not closed
        told = json.loads(connection.recv(timeout=5))["data"]
        assert told["message"] == "the session was idle for 0.3 seconds"
        with pytest.raises(ConnectionClosed) as gone:
            connection.recv(timeout=5)
        assert gone.value.rcvd is not None and gone.value.rcvd.code == 1001
        assert _in_time(lambda: len(closed) == 2)
        assert posted(url, f"/state?session={name}")[0] == 404


def test_a_connection_that_is_cut_frees_its_place() -> None:
    with serving("maze_fo", Limits(sessions=1)) as url:
        for _ in range(3):
            connection = socket_of(url)
            assert asked(connection, "reset", seed=0)["type"] == "observation"
            connection.socket.shutdown(socket.SHUT_RDWR)  # close() would wait until the client has read
            assert _in_time(lambda: _answers(url))


def _answers(url: str) -> bool:
    with socket_of(url) as connection:
        try:
            return bool(asked(connection, "reset", seed=0)["type"] == "observation")
        except ConnectionClosed:  # there was no room, and the farewell came before the request
            return False


def test_too_long_and_binary_messages() -> None:
    with serving("maze_fo", Limits(message=1000)) as url:
        with socket_of(url) as connection:
            connection.send(b'{"type": "state"}')
            assert json.loads(connection.recv(timeout=5))["data"]["code"] == "INVALID_JSON"
            connection.send(json.dumps({"type": "step", "data": {"text": "x" * 1000}}))
            with pytest.raises(ConnectionClosed) as gone:
                connection.recv(timeout=5)
            assert gone.value.rcvd is not None and gone.value.rcvd.code == 1009
        assert posted(url, "/reset", b"x" * 1001)[0] == 413
        assert posted(url, "/health") == (200, {"status": "healthy"})


def test_the_same_over_http() -> None:
    env = lmrl.make("maze_fo")
    with serving("maze_fo") as url:
        status, first = posted(url, "/reset", {"seed": 3, "episode_id": "mine"})
        name = first["observation"].pop("session")
        assert status == 200 and first["observation"]["text"] == env.reset(seed=3)[0]
        step = {"action": {"text": "move up\n"}, "session": name, "timeout_s": 3}
        status, after = posted(url, "/step", step)
        assert (status, after["observation"]["text"], after["reward"]) == (200, *env.step("move up\n")[:2])
        assert posted(url, f"/state?session={name}")[1]["step_count"] == 1
        assert posted(url, "/reset", {"seed": 4, "session": name})[1]["observation"]["text"] == env.reset(seed=4)[0]
        assert posted(url, "/close", {"session": name}) == (200, {"closed": True})
        for path, body in (("/step", step), ("/close", {"session": name}), ("/step", {**step, "session": ["x"]})):
            assert posted(url, path, body)[0] == 404
        for path, wrong in (
            ("/step", {"action": "move up"}),
            ("/step", {**step, "env": 3}),
            ("/reset", {"seed": -1}),
            ("/reset", {"env": {"layout": "umaze"}}),
        ):
            assert posted(url, path, wrong)[0] == 422
        assert posted(url, "/reset", b"{")[0] == 400
        assert posted(url, "/metadata")[1]["name"] == "maze_fo"
        assert posted(url, "/schema")[1]["action"]["required"] == ["text"]


def test_one_request_at_a_time_in_a_session_of_http() -> None:
    begun = threading.Event()
    go_on = threading.Event()

    def made() -> Any:
        env = lmrl.make("maze_fo")
        quick = env.step
        env.step = lambda action: (begun.set(), go_on.wait(10), quick(action))[2]  # type: ignore[method-assign]
        return env

    with serving("maze_fo", made=made) as url:
        name = posted(url, "/reset", {"seed": 0})[1]["observation"]["session"]
        step = {"action": {"text": "x"}, "session": name}
        answers: list[int] = []
        thread = threading.Thread(target=lambda: answers.append(posted(url, "/step", step)[0]))
        thread.start()
        assert begun.wait(5)
        assert posted(url, f"/state?session={name}")[0] == 409
        go_on.set()
        thread.join(10)
        assert answers == [200]


def test_pages_of_a_browser_are_not_answered() -> None:
    with serving("maze_fo") as url:
        assert posted(url, "/reset", {}, Origin="http://elsewhere.example")[0] == 403
        with pytest.raises(InvalidStatus):
            connect(f"ws{url.removeprefix('http')}/ws", origin="http://elsewhere.example")  # type: ignore[arg-type]


def test_what_cannot_be_made_is_said_and_frees_its_place() -> None:
    def made() -> Any:
        raise UserError("the engine is gone")

    with serving("maze_fo", Limits(sessions=1), made) as url:
        for _ in range(2):
            with socket_of(url) as connection:
                told = json.loads(connection.recv(timeout=5))["data"]
                assert told == {"message": "the engine is gone", "code": "FACTORY_ERROR"}


def test_a_shared_second_speaker_is_asked_by_one_at_a_time() -> None:
    """The sessions share one lock."""
    from lmrl.integrations.openenv.sessions import Session

    turn = threading.Lock()
    busy = threading.Event()
    sessions = [Session(partial(lmrl.make, "twenty_questions"), "twenty_questions", turn) for _ in range(2)]
    with turn:
        thread = threading.Thread(target=lambda: (sessions[1].reset({"seed": 0}), busy.set()))
        thread.start()
        assert not busy.wait(0.1)
    assert busy.wait(5)
    thread.join(5)
