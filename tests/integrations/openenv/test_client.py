"""The package `openenv` itself: its clients play what `lmrl serve` hands out."""

import asyncio

import pytest

pytest.importorskip("openenv", reason="openenv-core is missing: pip install 'lmrl[openenv]'")
from openenv.core.generic_client import GenericEnvClient

import lmrl
from lmrl.integrations.openenv import TaskAction, TaskClient
from tests.helpers.served import serving


def test_the_client_has_types_for_what_the_task_says() -> None:
    env = lmrl.make("wordle")
    with serving("wordle") as url, TaskClient(url).sync() as client:
        text, info = env.reset(seed=3)
        result = client.reset(seed=3, options=None, episode_id="mine")
        assert (result.observation.text, result.reward, result.done) == (text, None, False)
        assert result.observation.info["task_id"] == info["task_id"]
        total = 0.0
        while not result.done:
            text, reward, terminated, truncated, info = env.step("c r a n e\n")
            result = client.step(TaskAction(text="c r a n e\n"))
            seen = result.observation
            total = total + reward
            assert (seen.text, result.reward, seen.terminated, seen.truncated) == (text, reward, terminated, truncated)
            assert (seen.reward, seen.done, seen.info["success"]) == (reward, result.done, info["success"])
        state = client.state()
        assert (state.task, state.seed, state.episode_id, state.running) == ("wordle", 3, "mine", False)
        assert (state.return_so_far, state.step_count) == (total, 6)
        with pytest.raises(RuntimeError, match=r"reset first \(code: EXECUTION_ERROR\)"):
            client.step(TaskAction(text="c r a n e\n"))


def test_a_client_that_knows_no_types_plays_too() -> None:
    async def play(url: str) -> list[str]:
        async with GenericEnvClient(url) as client:
            first = await client.reset(seed=3)
            return [first.observation["text"], (await client.step({"text": "move up\n"})).observation["text"]]

    env = lmrl.make("maze_fo")
    with serving("maze_fo") as url:
        assert asyncio.run(play(url)) == [env.reset(seed=3)[0], env.step("move up\n")[0]]
