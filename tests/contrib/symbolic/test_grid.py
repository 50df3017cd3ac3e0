import numpy as np
import pytest

from lmrl.contrib.symbolic import Grid, GridMaze, GridPolicy, from_episodes
from lmrl.contrib.symbolic.grid import ACTIONS
from lmrl.envs.maze.layouts import LAYOUTS
from lmrl.envs.registry import make
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.types import Episode

GRID = Grid(LAYOUTS["double_t_maze"])


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_maze_of_words_in_numbers(seed: int) -> None:
    chance = np.random.default_rng(seed)
    words = make("maze_fo")
    numbers = GridMaze()
    cell = GRID.cells[int(chance.choice(GRID.starts))]
    words.reset(seed=0, options={"init_position": cell})
    state, info = numbers.reset(options={"init_position": cell})
    over = False
    while not over:
        assert GRID.cells[state] == info["position"]
        action = int(chance.integers(4))
        _, *told, where = words.step(ACTIONS[action])
        state, *found, info = numbers.step(action)
        assert (found, info["position"]) == (told, where["position"])
        over = told[1] or told[2]


def test_wrong_use() -> None:
    env = GridMaze()
    with pytest.raises(UserError, match="call reset"):
        env.step(0)
    for cell in ((8, 6), (0, 0), ()):
        with pytest.raises(UserError, match="init_position must be a free cell that is not the goal, got"):
            env.reset(options={"init_position": cell})
    env.reset(seed=1)
    with pytest.raises(UserError, match="action must be from 0 to 3, got 4"):
        env.step(4)


def test_seeds_draw_all_starts_and_repeat() -> None:
    env = GridMaze()
    drawn = [env.reset(seed=seed)[0] for seed in range(300)]
    assert {*drawn} == {*GRID.starts.tolist()}
    assert drawn == [env.reset(seed=seed)[0] for seed in range(300)]


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_return_is_the_one_that_playing_gives(seed: int) -> None:
    # Mostly the way to the goal, with some wrong moves.
    distance = GRID.layout.distances()
    right = np.array([[-distance[GRID.cells[n]] for n in row] for row in GRID.next], dtype=float)
    q = right + np.random.default_rng(seed).normal(scale=0.5 * seed, size=right.shape)
    played = evaluate(GridPolicy(GRID, q), "maze_fo", 25).scores()
    assert GRID.greedy_return(q) == pytest.approx(played["return_mean"])
    assert seed or GRID.greedy_return(q) == pytest.approx(-6.84)


def test_who_never_arrives_pays_for_the_call_that_says_so() -> None:
    left = np.eye(4)[[ACTIONS.index("move left\n")] * len(GRID.cells)]
    assert GRID.greedy_return(left) == -101


def test_a_policy_of_another_goal_says_so() -> None:
    with pytest.raises(UserError, match=r"this policy walks to \(3, 3\), not to \(8, 6\)"):
        small = Grid(LAYOUTS["umaze"])
        evaluate(GridPolicy(small, np.zeros(small.next.shape)), "maze_fo", 1)


def walk(*actions: str, last: str = "x\n") -> Episode:
    texts = ("x\n",) * len(actions) + (last,)
    info = {"start": {"init_position": (7, 6)}}
    return Episode(
        "maze_po", texts, actions, (-1.0,) * len(actions), last == "Success\n", last != "Success\n", info=info
    )


def test_steps_of_a_dataset_by_hand() -> None:
    lost = walk("move up\n", "move up\n", last="Failure\n")
    steps = from_episodes(
        [walk("move up\n", "jump\n", "move left\n"), lost, walk("move down\n", last="Success\n")], GRID
    )
    here = GRID.state[7, 6]
    above = GRID.state[6, 6]
    goal = GRID.state[8, 6]
    left, up, down = (ACTIONS.index(f"move {way}\n") for way in ("left", "up", "down"))
    assert steps.state.tolist() == [here, above, here, here]
    assert steps.action.tolist() == [up, left, up, down]
    assert steps.next.tolist() == [above, above, above, goal]
    assert steps.reward.tolist() == [-1.0, -1.0, -1.0, 0.0]
    assert steps.terminated.tolist() == [False, False, False, True]
    with pytest.raises(UserError, match="must hold at least one legal action"):
        from_episodes([walk("jump\n")], GRID)
    with pytest.raises(UserError, match="episode 0 does not say in which cell it began"):
        from_episodes([Episode("maze_po", ("x\n", "x\n"), ("move up\n",), (-1.0,), False, True)], GRID)
