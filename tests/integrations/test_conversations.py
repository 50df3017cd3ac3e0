"""The conversations for TRL: prompts of new episodes, and recorded episodes told as the tool's."""

import json
from pathlib import Path

import pytest

from lmrl.data import generate
from lmrl.data.storage import read_episodes
from lmrl.envs import registry, tasks
from lmrl.envs.registry import chat_prompt
from lmrl.errors import UserError
from lmrl.integrations.hf_datasets import conversations_dataset, prompts_dataset
from lmrl.integrations.trl import GAME_OVER, environment_factory, opening
from lmrl.rollout import episode_seed
from lmrl.types import Start
from tests.helpers.cases import cases

pytest.importorskip("datasets")


def test_prompts_begin_other_episodes_than_evaluations_do() -> None:
    rows = prompts_dataset("wordle", 5, seed=3)
    assert rows.column_names == ["prompt", "seed", "environment"] and len(set(rows["seed"])) == 5
    assert not set(rows["seed"]) & {episode_seed(3, i) for i in range(5)}
    assert list(prompts_dataset("wordle", 3, seed=3)["seed"]) == list(rows["seed"])[:3]
    system, user = rows[0]["prompt"]
    assert (
        system["role"] == "system" and '"act"' in system["content"] and chat_prompt("wordle").rules in user["content"]
    )
    with pytest.raises(UserError, match="size must be at least 1"):
        prompts_dataset("wordle", 0)
    with pytest.raises(UserError, match="unknown task 'sudoku'"):
        prompts_dataset("sudoku", 1)


def test_prompts_of_a_game_of_others_need_no_call_before() -> None:
    pytest.importorskip("websockets")
    name = "openenv:http://127.0.0.1:9"
    assert name not in registry._TASKS
    try:
        assert prompts_dataset(name, 2)["environment"] == [name] * 2
    finally:
        registry._TASKS.pop(name, None)


@cases("task", tasks())
def test_recorded_moves_are_calls_that_play_the_same_episode(task: str, tmp_path: Path) -> None:
    """Whatever the spelling of the dataset, the tool understands what the conversation says, and answers the same."""
    (episode,) = read_episodes(generate(task, 1, 0, tmp_path / f"{task}.parquet", progress=False))
    (row,) = conversations_dataset([episode])
    assert json.loads(row["tools"])[0]["function"]["parameters"]["required"] == ["action"]
    environment = environment_factory(task)()
    environment._slot.begin(0, Start(episode.info["seed"], episode.info["start"]))  # the recorder chose the start
    system, user, *turns, last = row["messages"]
    asked = [message["content"] for message in prompts_dataset(task, 1)[0]["prompt"]]
    assert [system["content"], user["content"]] == [asked[0], asked[1] + opening(task, episode.observations[0])]
    assert last["role"] == "assistant" and last["content"] == "" and len(turns) == 2 * len(episode)
    for call, told in zip(turns[::2], turns[1::2], strict=True):
        answer = environment.act(**call["tool_calls"][0]["function"]["arguments"])
        assert told["content"].removesuffix(f"\n{GAME_OVER}") == answer.removesuffix(f"\n{GAME_OVER}")
    assert environment.reward == episode.total_reward and told["content"].endswith(GAME_OVER)
