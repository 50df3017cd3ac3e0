from collections import Counter

import pytest

import lmrl
from lmrl.envs.maze.layouts import LAYOUTS
from lmrl.envs.maze.players import MazePlayer, best_moves
from lmrl.envs.registry import make_policy, policy_names
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Policy, Request, Start

STARTS = lmrl.task("maze_fo").starts


def play(policy: Policy, task: str = "maze_fo", slots: int = 32, repeats: int = 1) -> list[Episode]:
    starts = [Start(seed, options) for seed, options in enumerate(STARTS * repeats)]
    return in_order(rollout(policy, lambda: lmrl.make(task), starts, task=task, slots=slots))


def moves(skill: float, count: int) -> Counter[str]:
    info = {"position": (1, 1), "goal": (8, 6)}
    replies = MazePlayer(skill).act([Request(0, seed, ("",), info=info) for seed in range(count)])
    return Counter(reply.text for reply in replies)


@pytest.mark.parametrize("task", ["maze_fo", "maze_po"])
def test_the_optimal_player_is_optimal(task: str) -> None:
    episodes = play(make_policy(task, "optimal"), task)
    assert all(episode.success and episode.terminated for episode in episodes)
    assert sum(episode.total_reward for episode in episodes) / 25 == -6.84


def test_best_moves_know_every_cell_but_the_goal() -> None:
    best = best_moves(LAYOUTS["double_t_maze"], (8, 6))
    assert len(best) == 25
    assert (best[(1, 1)], best[(1, 11)], best[(5, 9)]) == ("move right\n", "move left\n", "move left\n")


def test_another_goal_and_layout() -> None:
    maze = LAYOUTS["umaze"]
    starts = [Start(0, {"init_position": (3, 1)}), Start(0, {"init_position": (3, 3), "goal": (3, 1)})]
    players = rollout(MazePlayer(1.0, maze), lambda: lmrl.make("maze_fo", layout=maze), starts, task="maze_fo")
    assert [episode.total_reward for episode in in_order(players)] == [-5.0, -5.0]


def test_the_uniform_player() -> None:
    found = moves(0.0, 4000)
    assert set(found) == set(lmrl.task("maze_fo").actions)
    assert all(900 <= count <= 1100 for count in found.values())  # standard deviation 27


def test_the_mixture_takes_the_best_move_15_percent_more_often() -> None:
    found = moves(0.15, 4000)
    assert found["move right\n"] / 4000 == pytest.approx(0.15 + 0.85 / 4, abs=0.03)
    assert found["move down\n"] / 4000 == pytest.approx(0.85 / 4, abs=0.03)


def test_the_named_mixture_scores_like_the_paper_says() -> None:
    episodes = play(make_policy("maze_fo", "behaviour"), repeats=12)
    returned = sum(episode.total_reward for episode in episodes) / len(episodes)
    assert returned == pytest.approx(-51.9, abs=6.5)  # standard error 2


@pytest.mark.parametrize("name", ["random", "behaviour"])
def test_moves_follow_from_seed_and_turn_alone(name: str) -> None:
    policy = make_policy("maze_fo", name)
    assert play(policy, slots=1) == play(policy, slots=64)
    assert len({episode.actions for episode in play(policy)}) == 25


def test_different_turns_differ() -> None:
    info = {"position": (1, 1), "goal": (8, 6)}
    requests = [Request(0, 5, ("",) * (turn + 1), ("",) * turn, info=info) for turn in range(40)]
    assert len({reply.text for reply in MazePlayer(0.0).act(requests)}) == 4


def test_names() -> None:
    assert policy_names("maze_po") == ("random", "behaviour", "optimal")
    with pytest.raises(UserError, match="unknown policy of maze_fo 'best'; known: behaviour, optimal, random"):
        make_policy("maze_fo", "best")
    with pytest.raises(UserError, match="unknown task 'chess9'"):
        make_policy("chess9", "random")
    with pytest.raises(UserError, match="skill must be from 0 to 1, got 2"):
        MazePlayer(2)
