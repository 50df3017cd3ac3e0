"""`vf-eval` itself on our taskset, against an endpoint whose answers are known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "verifiers.v1", reason="verifiers needs openai below 3: `make verifiers` tests it in an environment of its own"
)
from verifiers.v1.cli.eval.main import main

import lmrl
from lmrl.errors import UserError
from lmrl.integrations.trl import TaskEnvironment, finish
from lmrl.integrations.verifiers import GameConfig, GameTaskset
from lmrl.partners import environment
from tests.helpers.endpoints import Unruly, completion, reply

ENV = {"max_steps": 4}


def evaluated(game: str, answers: Sequence[str], root: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """The traces of an evaluation of one episode, and what the model was asked."""
    monkeypatch.chdir(root)
    monkeypatch.setenv("ANY_KEY", "key")
    with Unruly(*[completion(said) for said in answers]) as endpoint:
        given = ["lmrl-verifiers", "--env.taskset.game", game, "--env.taskset.episodes", "1", "--model", "tiny"]
        client = ["--client.base-url", endpoint.url, "--client.api-key-var", "ANY_KEY", "--no-rich", "--no-push"]
        main([*given, *client, *words])
    (traces,) = root.glob("outputs/*/traces.jsonl")
    (line,) = traces.read_text().splitlines()
    found = json.loads(line)
    return found.get("traces", [found])[0], endpoint.bodies


def scores(trace: Any) -> tuple[float, dict[str, float]]:
    reward = trace["rewards"]["episode_return"]
    return reward["score"] if isinstance(reward, dict) else reward, trace["metrics"]


def test_replies_are_moves_and_the_return_is_the_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--env.taskset.arguments", json.dumps(ENV))
    trace, asked = evaluated(
        "maze_fo", ["move up", "fly", "You: move left", "up", "x"], tmp_path, monkeypatch, *arguments
    )
    (task,) = GameTaskset(GameConfig(game="maze_fo", episodes=1, arguments=ENV))
    env = lmrl.make("maze_fo", **ENV)
    first, _ = env.reset(seed=task.data.seed)
    turns = [env.step(f"{action}\n") for action in ("move up", "fly", "move left", "up", "x")]
    assert turns[-1][3] and len(asked) == 5, "the episode is over with the last reply, and nothing more is asked"
    reward, metrics = scores(trace)
    assert reward == sum(turn[1] for turn in turns)
    assert (metrics["turns"], metrics["illegal"], metrics["success"], metrics["unfinished"]) == (5, 3, 0, 0)
    told = [message["content"] for message in asked[-1]["messages"]]
    assert first.strip() in told[1] and told[2] == "move up"
    assert told[3::2] == [turn[0].strip() for turn in turns[:-1]]


def test_who_stops_early_plays_empty_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--env.taskset.arguments", json.dumps(ENV), "--env.player.max-turns", "1")
    trace, asked = evaluated("maze_fo", ["move up"] * 3, tmp_path, monkeypatch, *arguments)
    reward, metrics = scores(trace)
    assert (metrics["turns"], metrics["unfinished"], len(asked)) == (5, 1, 1)
    (task,) = GameTaskset(GameConfig(game="maze_fo", episodes=1, arguments=ENV))
    game = TaskEnvironment("maze_fo", environment("maze_fo", ENV))
    game.reset(seed=task.data.seed)
    game.act("move up")
    finish(game)
    assert reward == game.reward


def test_an_endpoint_that_fails_is_an_error_of_the_episode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "completion", lambda _: reply(400, '{"error": "not today"}'))
    trace, asked = evaluated("maze_fo", ["x"] * 9, tmp_path, monkeypatch)
    assert asked and "not today" in json.dumps(trace["errors"])


def test_a_served_task_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("websockets")
    from tests.helpers.served import serving

    with serving("maze_fo", **ENV) as url:
        trace, asked = evaluated(f"openenv:{url}", ["move up"] * 5, tmp_path, monkeypatch)
    assert scores(trace)[1]["turns"] == len(asked) == 5


def test_a_taskset_is_the_same_episodes_for_the_same_seed() -> None:
    def seeds(**config: Any) -> list[int]:
        return [task.data.seed for task in GameTaskset(GameConfig(game="maze_fo", **config))]

    assert seeds(episodes=3) == seeds(episodes=4)[:3] != seeds(episodes=3, seed=1)
    assert len(set(seeds(episodes=20))) == 20


def test_a_game_has_to_be_named() -> None:
    with pytest.raises(UserError, match=r"name a task: --env\.taskset\.game NAME"):
        next(iter(GameTaskset(GameConfig())))
