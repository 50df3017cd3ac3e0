import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check

import lmrl
from lmrl.envs import registry
from lmrl.envs.maze.env import Maze
from lmrl.envs.registry import make_policy, policy_names, recording, register
from lmrl.envs.task import Task
from lmrl.errors import UserError
from lmrl.evaluation.loading import PolicySpec
from tests.helpers.cases import cases


def test_what_the_maze_rows_say() -> None:
    fo = lmrl.task("maze_fo")
    po = lmrl.tasks()["maze_po"]
    assert (fo.env_id, po.env_id) == ("lmrl/MazeFO-v0", "lmrl/MazePO-v0")
    assert (fo.last_texts, po.last_texts) == (1, 40)
    for row in (fo, po):
        assert (row.max_action_tokens, row.dataset_size) == (8, 1240)
        assert row.actions == ("move left\n", "move right\n", "move up\n", "move down\n")
        assert len({start["init_position"] for start in row.starts}) == 25
        assert row.scores.minimum == -101


def test_tasks_may_be_changed_without_harm() -> None:
    lmrl.tasks().clear()
    assert lmrl.tasks()
    with pytest.raises(dataclasses.FrozenInstanceError):
        lmrl.task("maze_fo").name = "other"  # type: ignore[misc]


def test_make_gives_the_bare_environment() -> None:
    env = lmrl.make("maze_po", max_steps=3)
    assert type(env) is Maze
    assert env.max_steps == 3
    assert env.reset(seed=0)[0].startswith("There ")


@cases("name", lmrl.tasks())
def test_gymnasium_makes_and_accepts_it(name: str) -> None:
    env = gymnasium.make(lmrl.task(name).env_id)
    text, _ = env.reset(seed=4)
    assert text == lmrl.make(name).reset(seed=4)[0]
    gymnasium_check(env.unwrapped)


def test_unknown_names() -> None:
    with pytest.raises(UserError, match=r"unknown task 'maze'; known: car_dealer, chess, .*maze_fo, maze_po"):
        lmrl.make("maze")
    with pytest.raises(UserError, match="unknown task"):
        lmrl.task("maze")
    with pytest.raises(UserError, match=r"unknown argument of task maze_fo 'color'; known: .*max_steps"):
        lmrl.make("maze_fo", color="red")


def test_a_task_of_ones_own() -> None:
    mine = dataclasses.replace(lmrl.task("maze_po"), name="mine", env_id="lmrl/Mine-v0", kwargs={"layout": "umaze"})
    try:
        register(mine)
        register(dataclasses.replace(mine, description="again"))
        assert lmrl.task("mine").description == "again"
        first = lmrl.make("mine").reset(seed=1)[0]
        assert gymnasium.make("lmrl/Mine-v0").reset(seed=1)[0] == first
    finally:
        registry._TASKS.pop("mine", None)
        gymnasium.registry.pop("lmrl/Mine-v0", None)
    with pytest.raises(UserError, match="name must not be that of a task of the benchmark, got 'wordle'"):
        register(dataclasses.replace(mine, name="wordle"))


def test_the_starts_of_a_task_of_ones_own_are_kept(mine: Task) -> None:
    row = dataclasses.replace(mine, starts=({"init_position": (1, 1)},), selection=({"init_position": (1, 2)},))
    register(row)
    assert registry.starts("my_maze") == registry.starts("my_maze", {"max_steps": 5}) == row.starts
    assert registry.starts("my_maze", selection=True) == row.selection
    assert len(registry.starts("my_maze", {"layout": "umaze"}, selection=True)) == 6


@cases("name", lmrl.tasks())
def test_a_task_can_be_sent_to_another_process(name: str) -> None:
    assert pickle.loads(pickle.dumps(lmrl.task(name))) == lmrl.task(name)


def test_the_package_names_its_parts_lazily() -> None:
    assert lmrl.data.dataset_path("maze_fo", 5, 6).name == "maze_fo-v1-n5-s6.parquet"
    assert "modules" in dir(lmrl)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lmrl.nothing  # noqa: B018


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
    (tmp_path / "lmrl.json").write_text('{"files": []}', encoding="utf-8")
    assert PolicySpec.parse(str(tmp_path), mine).is_trained
    with pytest.raises(UserError, match="unknown policy of my_maze 'random'"):
        make_policy("my_maze", "random")
    with pytest.raises(UserError, match=r"'my_maze' has no recipe for a dataset.*data\.init_args\.path"):
        recording("my_maze")
    with pytest.raises(UserError, match="no policy 'random'"):
        PolicySpec.parse("random", mine)


def test_an_unknown_task_is_still_an_error() -> None:
    with pytest.raises(UserError, match="unknown task 'hide_and_seek'"):
        policy_names("hide_and_seek")
