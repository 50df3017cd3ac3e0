"""Tests of games from others: their texts and rewards, the laws that they break, and who may name them."""

import asyncio
import gc
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmrl
from lmrl.cli import main
from lmrl.envs import registry
from lmrl.envs.checker import tried_laws
from lmrl.envs.outside import named_task
from lmrl.errors import UserError
from lmrl.evaluation.loading import PolicySpec
from lmrl.integrations.openenv import Limits
from lmrl.integrations.trl import environment_factory
from tests.helpers.cases import cases
from tests.helpers.endpoints import Unruly, reply
from tests.helpers.served import serving

websockets = pytest.importorskip("websockets")
from websockets.asyncio.server import serve  # noqa: E402


@contextmanager
def answering(answer: Callable[[dict[str, Any]], Any]) -> Iterator[str]:
    """Run a foreign server that answers each message with `answer`, and yield its address.

    A callable answer is called with the connection, and may do anything to it.
    """
    ready = threading.Event()
    addresses = []

    async def handle(connection: Any) -> None:
        async for message in connection:
            if message == '{"type": "close"}':
                return
            said = answer(json.loads(message))
            if callable(said):
                await said(connection)
                continue
            await connection.send(said if isinstance(said, (str, bytes)) else json.dumps(said))

    async def run() -> None:
        async with serve(handle, "127.0.0.1", 0) as server:
            addresses.append(server.sockets[0].getsockname()[1])
            stop.append((asyncio.get_running_loop(), asyncio.Event()))
            ready.set()
            await stop[0][1].wait()

    stop: list[Any] = []
    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{addresses[0]}"
    finally:
        stop[0][0].call_soon_threadsafe(stop[0][1].set)
        thread.join(10)


def seen(reward: Any = None, done: Any = False, **observation: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}


class Echo:
    """A game that repeats each message, with a number that no seed decides."""

    def __init__(self) -> None:
        self.count = 0
        self.heard: list[Any] = []

    def __call__(self, message: dict[str, Any]) -> Any:
        self.heard.append(message)
        self.count += 1
        if message["type"] == "reset":
            return seen(prompt=f"number {self.count}", turns=self.count)
        if "message" not in message["data"]:
            return {"type": "error", "data": {"message": "Invalid message", "code": "VALIDATION_ERROR"}}
        said = message["data"]["message"]
        return seen(0.5, said == "end\n", prompt=f"you said {said}", turns=self.count)


def test_a_foreign_server_is_played_and_its_seeds_are_told_to_be_none() -> None:
    echo = Echo()
    with answering(echo) as url:
        env = lmrl.make(f"openenv:{url}", action="message")
        text, info = env.reset(seed=7)
        assert text == "number 1" and (info["seed"], info["start"], info["success"]) == (7, {}, False)
        assert echo.heard[0] == {"type": "reset", "data": {"seed": 7}}
        assert env.step("hello\n")[:4] == ("you said hello\n", 0.5, False, False)
        assert env.step("end\n")[:4] == ("you said end\n", 0.5, True, False)
        with pytest.raises(UserError, match="the last one is over"):
            env.step("more\n")
        env.close()
        with pytest.raises(UserError, match=r"Invalid message; another field of its actions .* --env action=NAME"):
            wrong = lmrl.make(f"openenv:{url}")
            wrong.reset(seed=0)
            wrong.step("hello\n")
        shown = lmrl.make(f"openenv:{url}", action="message", observation="turns").reset(seed=0)[0]
        assert shown == str(echo.count)


def test_check_env_says_which_laws_are_broken_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    class Short(Echo):
        def __call__(self, message: dict[str, Any]) -> Any:
            return super().__call__({**message, "data": {**message.get("data", {}), "message": "end\n"}})

    with answering(Short()) as url:
        assert main(["check-env", f"openenv:{url}", "--texts", "5", "--env", "action=message"]) == 1
    said = capsys.readouterr()
    assert "law 'same seed, same actions, same episode' broken" in said.err
    assert "law 'pickling keeps behaviour' broken" in said.err and "cannot be copied or pickled" in said.err
    assert "ok: returns within the declared range" in said.out and "ok: any text is answered" in said.out


def test_a_served_task_obeys_all_laws_but_pickling() -> None:
    with serving("maze_fo", max_steps=6) as url:
        tried = dict(tried_laws(partial(lmrl.make, f"openenv:{url}"), texts=20))
    assert [law for law, broken in tried.items() if broken is not None] == ["pickling keeps behaviour"]


@cases(
    ("answer", "told"),
    [
        ("no json", "is not one of OpenEnv"),
        (b"\xff\xfe", "is not one of OpenEnv"),
        ("[" * 50_000, "is not one of OpenEnv"),
        ({"type": "observation", "data": {"observation": "x"}}, "is not one of OpenEnv"),
        ({"type": "observation"}, "is not one of OpenEnv"),
        (seen(reward="much", text="x"), "is not one of OpenEnv"),
        (seen(reward=1e999, text="x"), "is not one of OpenEnv"),
        (seen(reward=1e300, text="x"), "is not one of OpenEnv"),
        (seen(reward=10**400, text="x"), "is not one of OpenEnv"),
        (seen(reward="1", text="x"), "is not one of OpenEnv"),
        ('{"type": "observation", "data": {"observation": {"text": "x"}, "reward": NaN}}', "is not one of OpenEnv"),
        (seen(done="yes", text="x"), "is not one of OpenEnv"),
        (seen(one="x", two="y"), "tells several texts (one, two); say which to show: --env observation=NAME"),
        (seen(number=3), "tells no text (number)"),
        ({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}}, "refuses: full"),
        ("x" * 2**22 + "x", "no answer of"),
    ],
)
def test_strange_answers_are_errors_in_one_line(answer: Any, told: str) -> None:
    with answering(lambda message: answer) as url:
        env = lmrl.make(f"openenv:{url}")
        with pytest.raises(UserError) as refused:
            env.reset(seed=0)
        assert told in str(refused.value) and "\n" not in str(refused.value) and len(str(refused.value)) < 500
        env.close()


def test_strange_infos_of_a_server_like_ours_are_facts_of_the_right_kind() -> None:
    info = {"success": "yes", "illegal": 3, "start": "here", "task_id": ["x"], "seed": 99}
    info |= {"replies": ["a", 5], "half \ud83d": ["\ud83d"]}
    with answering(lambda _: seen(0, text="x", terminated=1, truncated=False, info=info)) as url:
        env = lmrl.make(f"openenv:{url}")
        _, told = env.reset(seed=5)
        assert (told["success"], told["illegal"], told["start"], told["seed"]) == (False, False, {}, 5)
        assert isinstance(told["task_id"], str)
        assert "replies" not in told
        assert told["half \ufffd"] == ("\ufffd",)
        assert env.step("x")[2:4] == (False, False)


def test_half_a_character_is_mended_where_it_arrives() -> None:
    with answering(lambda _: seen(0, text="half \ud83d, whole \ud83d\ude00")) as url:
        env = lmrl.make(f"openenv:{url}")
        assert env.reset(seed=0)[0] == env.step("x")[0] == "half \ufffd, whole \U0001f600"


def test_no_redirect_is_followed() -> None:
    with answering(lambda _: seen(text="x")) as other:
        elsewhere = f"ws{other.removeprefix('http')}/ws"
        with Unruly(reply(307, "", location=elsewhere)) as server:
            with pytest.raises(UserError, match=r"no server at .* 307"):
                lmrl.make(f"openenv:{server.url}")


def test_a_lost_session_is_begun_anew_with_the_next_episode_and_not_within_one() -> None:
    with serving("maze_fo", Limits(idle=0.2)) as url:
        env = lmrl.make(f"openenv:{url}")
        first = env.reset(seed=0)
        threading.Event().wait(0.6)
        with pytest.raises(UserError, match="no answer of"):
            env.step("move up\n")
        assert env.reset(seed=0) == first
        env.close()
    with pytest.raises(UserError, match="no answer of"):
        env.reset(seed=0)


@pytest.mark.timeout(30)
def test_one_that_is_forgotten_ends_its_session_whatever_its_collector_holds() -> None:
    with serving("maze_fo", Limits(sessions=1)) as url:
        env = lmrl.make(f"openenv:{url}")
        first = env.reset(seed=0)
        with env._connection.protocol_mutex:  # as if garbage collection ran in the thread that reads
            del env
            gc.collect()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with suppress(UserError):
                assert lmrl.make(f"openenv:{url}").reset(seed=0) == first
                break
        else:
            pytest.fail("the session was not ended")


@cases(
    ("name", "told"),
    [
        ("openenv:", "needs the address of a server"),
        ("openenv:file:///etc/passwd", "needs the address of a server"),
        ("openenv:localhost:8000", "needs the address of a server"),
        ("openenv:http://127.0.0.1:1", "no server at"),
        ("openenv:http://127.0.0.1:99999999", "no server at"),
        ("textarena:os:system", "unknown game of textarena 'os:system'; known: 2048-v0"),
        ("textarena:textarena.envs.Wordle.env:WordleEnv", "unknown game of textarena"),
        ("textarena:", "unknown game of textarena ''"),
        ("gym:maze_fo", "unknown task 'gym:maze_fo'; known: car_dealer"),
    ],
)
def test_what_cannot_be_played_is_said(name: str, told: str) -> None:
    if name.startswith("textarena"):
        pytest.importorskip("textarena")
    with pytest.raises(UserError) as refused:
        lmrl.make(name)
    assert told in str(refused.value)


def test_only_a_user_names_an_address(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A data file that names an address is a file of an unknown task, and nothing is opened."""
    heard: list[Any] = []

    def hear(message: Any) -> Any:
        heard.append(message)
        return seen(text="x")

    with answering(hear) as url:
        name = f"openenv:{url}"
        record = {"task": name, "observations": ["x", "y"], "actions": ["a"], "rewards": [0.0]}
        (tmp_path / "evil.jsonl").write_text(json.dumps({**record, "terminated": True, "truncated": False, "seed": 0}))
        assert main(["data", "verify", str(tmp_path / "evil.jsonl")]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: unknown task in episode 1 of ") and f"'{name}'; known: car_dealer" in said
        with pytest.raises(UserError, match="unknown task"):
            registry.make(name)
        assert not heard
        lmrl.make(name).close()
        assert registry.task(name).name == name and name not in lmrl.tasks()


def test_trl_plays_a_served_task() -> None:
    with serving("maze_fo") as url:
        there = environment_factory(f"openenv:{url}")()
        here = environment_factory("maze_fo")()
        assert there.reset(seed=1).endswith(here.reset(seed=1).partition(": ")[2])
        assert there.act("move up") == here.act("move up").strip()
        assert (there.reward, there.done) == (here.reward, here.done)


def test_an_address_is_no_path() -> None:
    with serving("maze_fo") as url:
        folder = PolicySpec.parse("human", f"openenv:{url}").default_folder()
    assert len(folder.parts) == 4 and folder.parts[0] == "runs" and ":" not in str(folder)


@pytest.fixture
def arena() -> Any:
    return pytest.importorskip("textarena", reason="textarena is missing: pip install 'lmrl[textarena]'")


def test_a_game_of_textarena_shows_new_text_alone(arena: Any) -> None:
    env = lmrl.make("textarena:Mastermind-v0")
    text, info = env.reset(seed=1)
    assert text.startswith("You are playing Mastermind.") and info["seed"] == 1
    text, reward, terminated, _, info = env.step("[1 2 3 4]")
    assert text.startswith("Submitted [1 2 3 4]. Feedback: ") and "\n" not in text
    assert (reward, terminated, info["illegal"]) == (0.0, False, False)
    assert env.step("hello")[4]["illegal"]
    text, reward, terminated, truncated, info = env.step("hello")
    assert (terminated, truncated, info["success"], info["illegal"]) == (True, False, False, True)
    assert text == info["reason"] and text.startswith("Invalid Move")


def test_a_solved_game_of_textarena_is_a_success(arena: Any) -> None:
    env = lmrl.make("textarena:TowerOfHanoi-v0")
    env.reset(seed=0)
    moves = "A C,A B,C B,A C,B A,B C,A C".split(",")
    turns = [env.step(f"[{move}]") for move in moves]
    assert [turn[1] for turn in turns] == [0.0] * 6 + [1.0] and turns[-1][2] and turns[-1][4]["success"]


def test_textarena_draws_from_no_generator_of_others(arena: Any) -> None:
    """Its games seed and use the global generators, which two games that take turns would share."""
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    alone = _boards(1)
    one, two = (lmrl.make("textarena:2048-v0") for _ in range(2))
    together = [one.reset(seed=1)[0]]
    two.reset(seed=2)
    for _ in range(4):
        together.append(one.step("[up]")[0] + one.step("[left]")[0])
        two.step("[up]")
        random.random()
    assert together == alone != _boards(2)
    random.setstate(before[0])
    _boards(1)
    assert random.getstate() == before[0] and np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]


def _boards(seed: int) -> list[str]:
    env = lmrl.make("textarena:2048-v0")
    return [env.reset(seed=seed)[0], *[env.step("[up]")[0] + env.step("[left]")[0] for _ in range(4)]]


def test_games_of_textarena_in_threads_are_the_same_games(arena: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [_boards(seed) for seed in range(4)]
    game = arena.envs.Game2048.env.Game2048Env
    step = game.step

    def slow_step(self: Any, action: str) -> Any:
        time.sleep(0.01)  # moves of different games overlap
        return step(self, action)

    monkeypatch.setattr(game, "step", slow_step)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(_boards, range(4))) == alone


def test_games_for_several_are_refused(arena: Any) -> None:
    with pytest.raises(UserError, match=r"is not for one player|cannot begin"):
        lmrl.make("textarena:QuantumTicTacToe-v0").reset(seed=0)


def test_prompts_of_others_have_no_examples() -> None:
    with serving("maze_fo") as url:
        name = named_task(f"openenv:{url}").name
    assert registry.chat_prompt(name).examples == 0
