"""Players and recipes by name, also of tasks that were only registered."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from lmrl.envs import registry
from lmrl.envs.registry import make_policy, policy_names, recording
from lmrl.envs.task import Task
from lmrl.errors import UserError
from lmrl.players import is_trained


@pytest.fixture
def mine() -> Iterator[Task]:
    row = dataclasses.replace(
        registry.task("maze_fo"), name="my_maze", env_id="lmrl/MyMaze-v0", players="", recording=""
    )
    registry.register(row)
    yield row
    del registry._TASKS["my_maze"], gymnasium.registry["lmrl/MyMaze-v0"]


def test_every_task_of_the_benchmark_has_players_and_a_recipe() -> None:
    for name in registry.tasks():
        assert {"random", "behaviour"} <= set(policy_names(name))
        assert recording(name).policy is not None


def test_a_task_without_hooks_has_neither_and_is_played_by_runs(mine: Task, tmp_path: Path) -> None:
    assert policy_names("my_maze") == ()
    assert is_trained(str(tmp_path), mine)
    with pytest.raises(UserError, match="unknown policy of my_maze 'random'"):
        make_policy("my_maze", "random")
    with pytest.raises(UserError, match=r"'my_maze' has no recipe for a dataset.*data\.init_args\.path"):
        recording("my_maze")
    with pytest.raises(UserError, match="no policy 'random'"):
        is_trained("random", mine)


def test_an_unknown_task_is_still_an_error() -> None:
    with pytest.raises(UserError, match="unknown task 'hide_and_seek'"):
        policy_names("hide_and_seek")
