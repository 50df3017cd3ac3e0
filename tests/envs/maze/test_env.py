import random
from collections import Counter
from pathlib import Path

import pytest

import lmrl
from lmrl.envs.maze.env import Maze
from lmrl.envs.maze.layouts import MOVES
from lmrl.errors import UserError
from tests.helpers.cases import cases

LEFT = "move left\n"
RIGHT = "move right\n"
UP = "move up\n"
DOWN = "move down\n"
STARTS = [start["init_position"] for start in lmrl.task("maze_fo").starts]


def at(env: Maze, row: int, col: int) -> str:
    return env.reset(seed=0, options={"init_position": (row, col)})[0]


def one_step(env: Maze, cell: tuple[int, int], action: str) -> tuple[tuple[int, int], float, bool]:
    at(env, *cell)
    _, reward, terminated, _, info = env.step(action)
    return info["position"], reward, terminated


def test_goal_and_walls_without_position() -> None:
    assert at(Maze(observe="goal"), 5, 4) == "The goal is at position 8, 6. There are walls above you, below you.\n"


def test_goal_can_be_set_and_is_told_with_spaced_digits() -> None:
    env = Maze(observe="goal")
    text, info = env.reset(seed=0, options={"init_position": (1, 9), "goal": (1, 11)})
    assert text == "The goal is at position 1, 1 1. There is a wall above you.\n"
    assert info["goal"] == (1, 11)
    env.step(RIGHT)
    text, reward, terminated, truncated, info = env.step(RIGHT)
    assert (text, reward, terminated, truncated, info["success"]) == ("Success\n", 0.0, True, False, True)
    # the next episode is back at the maze's own goal
    assert env.reset(seed=0)[1]["goal"] == (8, 6)


def test_eight_wall_observations() -> None:
    env = Maze(observe="walls")
    assert len({at(env, *cell) for cell in STARTS}) == 7
    text, _ = env.reset(seed=0, options={"init_position": (8, 6), "goal": (1, 1)})
    assert text == "There are walls to your right, to your left, below you.\n"  # the eighth: the cell of the goal


@pytest.mark.parametrize(
    ("reward", "goal", "illegal", "move"),
    [
        ("standard", 0.0, -4.0, -1.0),
        ("illegal_penalty", 1.0, -1.0, 0.0),
        ("illegal_penalty_diff_scale", 1.0, -100.0, -1.0),
    ],
)
def test_rewards(reward: str, goal: float, illegal: float, move: float) -> None:
    env = Maze(reward=reward)
    at(env, 7, 6)
    assert env.step(LEFT)[1] == move  # into a wall
    assert env.step(UP)[1] == move
    assert env.step("move sideways\n")[1] == illegal
    assert env.step(DOWN)[1] == move
    assert env.step(DOWN)[1] == goal
    assert env.return_range == (100 * min(illegal, move) - 1, goal)


@cases("action", ["move left", " move left\n", "move  left\n", "Move left\n", "move left\n\n", "left\n"])
def test_actions_are_compared_literally(action: str) -> None:
    env = Maze()
    at(env, 5, 5)
    text, reward, _, _, info = env.step(action)
    assert (reward, info["illegal"], info["position"]) == (-4.0, True, (5, 5))
    assert "5, 5" in text
    assert env.step(LEFT)[4]["position"] == (5, 4)


def test_legal_failure_takes_101_calls_and_returns_minus_101() -> None:
    env = Maze()
    at(env, 1, 1)
    turns = [env.step(LEFT) for _ in range(101)]
    assert [turn[3] for turn in turns] == [False] * 100 + [True]
    assert not any(turn[2] for turn in turns)
    assert turns[-1][:2] == ("Failure\n", -1.0)
    assert sum(turn[1] for turn in turns) == -101.0
    assert turns[-1][4]["success"] is False


def test_illegal_failure_returns_minus_401() -> None:
    env = Maze()
    at(env, 1, 1)
    turns = [env.step("?") for _ in range(101)]
    assert sum(turn[1] for turn in turns) == -401.0 == env.return_range[0]
    assert turns[-1][4]["illegal"] is True


@pytest.mark.parametrize(
    ("cell", "action", "position"),
    [
        ((1, 2), RIGHT, "1, 3"),  # the move that the clock forbade
        ((1, 2), UP, "1, 2"),  # a wall
        ((1, 2), "?", "1, 2"),
        ((7, 6), DOWN, "7, 6"),  # the goal: the last text that is a state
    ],
)
def test_what_the_player_would_have_read_had_the_clock_not_run_out(
    cell: tuple[int, int], action: str, position: str
) -> None:
    env = Maze(max_steps=1)
    at(env, *cell)
    env.step(UP if cell == (1, 2) else LEFT)  # a wall: stay
    text, _, terminated, truncated, info = env.step(action)
    assert (text, terminated, truncated) == ("Failure\n", False, True)
    assert f"Your current position is at position {position}." in info["final_observation"]
    assert info["position"] == cell


def test_final_observation_only_when_time_is_up() -> None:
    env = Maze(max_steps=3)
    at(env, 7, 6)
    assert "final_observation" not in env.step(LEFT)[4]
    assert "final_observation" not in env.step(DOWN)[4]


def test_goal_with_the_last_action_counts() -> None:
    env = Maze(max_steps=1)
    at(env, 7, 6)
    assert env.step(DOWN)[:4] == ("Success\n", 0.0, True, False)


def test_start_is_uniform_over_the_free_cells_but_the_goal() -> None:
    env = Maze()
    found = Counter(env.reset(seed=seed)[1]["position"] for seed in range(2500))
    assert set(found) == set(STARTS)
    assert (8, 6) not in found
    assert all(60 <= count <= 145 for count in found.values())  # 100 expected, 4.5 standard deviations


@cases(
    ("options", "message"),
    [
        ({"init_position": (0, 0)}, r"init_position must be a free cell of the maze, got \(0, 0\)"),
        ({"init_position": (8, 6)}, r"init_position must not be the goal, got \(8, 6\)"),
        ({"init_position": (-5, 3)}, "free cell"),
        ({"init_position": 3}, r"must be a \(row, column\) of whole numbers, got 3"),
        ({"init_position": (1.5, 2)}, "whole numbers"),
        ({"init_position": (1, 2, 3)}, "whole numbers"),
        ({"goal": (0, 0)}, "goal must be a free cell"),
        ({"start": (1, 1)}, "unknown reset option 'start'; known: goal, init_position"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Maze().reset(seed=0, options=options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"observe": "all"}, "unknown maze observation 'all'; known: goal, position, walls"),
        ({"reward": "big"}, "unknown maze reward 'big'"),
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"layout": "triple"}, "unknown maze layout .* 'triple'; known: double_t_maze, umaze"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Maze(**arguments)  # type: ignore[arg-type]


def test_umaze() -> None:
    env = Maze(layout="umaze", observe="position")
    assert at(env, 3, 1) == (
        "The goal is at position 3, 3. Your current position is at position 3, 1. "
        "There are walls to your right, to your left, below you.\n"
    )
    for action in (UP, UP, RIGHT, RIGHT, DOWN):
        assert env.step(action)[2] is False
    assert env.step(DOWN)[:3] == ("Success\n", 0.0, True)


def test_a_maze_from_a_file_with_a_start(tmp_path: Path) -> None:
    (tmp_path / "my.txt").write_text("1111\n1S01\n1.G1\n1111\n")
    env = Maze(layout=str(tmp_path / "my.txt"))
    assert {env.reset(seed=seed)[1]["position"] for seed in range(20)} == {(1, 1)}
    assert env.step(DOWN)[4]["position"] == (2, 1)
    assert env.step(RIGHT)[2] is True
    env.reset(seed=0)
    assert env.render() == "####\n#P #\n# G#\n####\n"


def test_best_mean_return_over_the_25_starts_by_search_in_the_environment() -> None:
    env = Maze()
    after = {(cell, action): one_step(env, cell, action) for cell in STARTS for action in MOVES}
    best = dict.fromkeys(STARTS, -1000.0)
    for _ in range(30):  # more sweeps than the longest way
        for cell in STARTS:
            best[cell] = max(
                reward + (0.0 if done else best[position])
                for position, reward, done in (after[cell, action] for action in MOVES)
            )
    assert len(STARTS) == 25
    assert sum(best.values()) / 25 == -6.84


def uniform_player() -> tuple[float, float]:
    """Mean return and success of the uniform legal player over the 25 starts, exactly, by sweeping back in time."""
    env = Maze()
    after = {(cell, action): one_step(env, cell, action) for cell in STARTS for action in MOVES}
    value, success = dict.fromkeys(STARTS, -1.0), dict.fromkeys(STARTS, 0.0)  # the 101st call
    for _ in range(100):
        new_value = {}
        new_success = {}
        for cell in STARTS:
            outcomes = [after[cell, action] for action in MOVES]
            new_value[cell] = sum(reward + (0 if done else value[pos]) for pos, reward, done in outcomes) / 4
            new_success[cell] = sum(1 if done else success[pos] for pos, _, done in outcomes) / 4
        value = new_value
        success = new_success
    return sum(value.values()) / 25, sum(success.values()) / 25


def test_uniform_player_exactly() -> None:
    returned, success = uniform_player()
    assert returned == pytest.approx(-86.0, abs=0.2)
    assert success == pytest.approx(0.246, abs=0.001)


def test_uniform_player_by_playing() -> None:
    env = lmrl.make("maze_fo")
    rng = random.Random(0)
    returned = []
    success = []
    for start in lmrl.task("maze_fo").starts * 80:
        env.reset(seed=0, options=start)
        total = 0.0
        over = False
        while not over:
            _, reward, terminated, truncated, _ = env.step(rng.choice(list(MOVES)))
            total = total + reward
            over = terminated or truncated
        returned.append(total)
        success.append(terminated)
    assert sum(returned) / 2000 == pytest.approx(-86.0, abs=1.5 + 1)  # standard error 0.7
    assert sum(success) / 2000 == pytest.approx(0.246, abs=0.04)
