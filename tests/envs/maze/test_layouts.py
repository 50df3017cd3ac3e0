from pathlib import Path
from typing import Any

import pytest

from lmrl.envs.maze.layouts import LAYOUTS, Layout, find_layout, load_layout, walked
from lmrl.envs.registry import make, make_policy
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Reply, Request, Start
from tests.helpers.cases import cases


def write(folder: Path, text: str) -> Path:
    path = folder / "maze.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_double_t_maze_is_the_published_one() -> None:
    published = (
        "1111111111111 1000001000001 1110111110111 1110111110111 1110111110111 "
        "1110000000111 1111110111111 1111110111111 1111110111111 1111111111111"
    )
    maze = LAYOUTS["double_t_maze"]
    assert tuple(row.replace("#", "1").replace(" ", "0") for row in maze.rows) == tuple(published.split())
    assert maze.goal == (8, 6)
    assert len(maze.free) == 26


def test_umaze_is_the_published_one() -> None:
    maze = LAYOUTS["umaze"]
    assert maze.rows == ("#####", "#   #", "# # #", "# # #", "#####")
    assert maze.goal == (3, 3)


def test_distances() -> None:
    distances = LAYOUTS["double_t_maze"].distances()
    assert distances[(8, 6)] == 0
    assert distances[(7, 6)] == 1
    assert distances[(1, 1)] == distances[(1, 11)] == 12
    assert sum(distances.values()) / 25 == 7.84


def test_both_alphabets_give_the_same_layout(tmp_path: Path) -> None:
    one = load_layout(write(tmp_path, "#####\n#S G#\n#####\n"))
    two = load_layout(write(tmp_path, "11111\n1S.G1\n11111"))
    assert one == two == Layout(("#####", "#   #", "#####"), goal=(1, 3), start=(1, 1))
    assert find_layout(str(tmp_path / "maze.txt")) == one


@cases(
    ("text", "message"),
    [
        ("####\n#x #\n####", "unknown mark 'x' at row 1, column 1"),
        ("####\n#G #\n###", "row 2 has 3 columns, row 0 has 4"),
        ("####\n#G  \n####", "the border must be wall, but row 1, column 3 is free"),
        ("# ##\n#G #\n####", "row 0, column 1 is free"),
        ("####\n#  #\n####", "needs one goal"),
        ("", "needs one goal"),
        ("#####\n#G G#\n#####", "a second G at row 1, column 3"),
        ("######\n#GSS #\n######", "a second S at row 1, column 3"),
        ("######\n#G # #\n######", "the goal cannot be reached from row 1, column 4"),
        ("###\n#G#\n###", "a maze needs a free cell besides the goal"),
    ],
)
def test_a_wrong_file_is_named_with_row_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=message) as caught:
        load_layout(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "maze.txt").write_bytes(b"####\n#G\xff#\n####")
    with pytest.raises(UserError, match=r"maze\.txt: is not UTF-8 text"):
        load_layout(tmp_path / "maze.txt")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such layout file"):
        load_layout(tmp_path / "none.txt")


def test_a_goal_inside_a_wall() -> None:
    with pytest.raises(UserError, match=r"goal must be a free cell, got \(0, 0\)"):
        Layout(("###", "# #", "###"), goal=(0, 0))


MAZE = LAYOUTS["double_t_maze"]


class Noting:
    """Plays at random and notes where it was."""

    def __init__(self) -> None:
        self.player, self.cells = make_policy("maze_po", "random"), list[tuple[int, int]]()

    def act(self, requests: list[Request]) -> list[Reply]:
        self.cells += [tuple(request.info["position"]) for request in requests]
        return self.player.act(requests)


@pytest.mark.parametrize("task", ["maze_fo", "maze_po"])
def test_the_cells_are_those_of_the_environment(task: str) -> None:
    for seed in range(4):
        noting = Noting()
        (episode,) = in_order(rollout(noting, lambda: make(task), [Start(seed)], task=task, slots=1))
        found = walked(episode, MAZE)
        assert found is not None and found[:-1] == noting.cells
        assert found[-1] == tuple(episode.info["position"])


def test_a_position_in_the_text_is_a_start_too_and_the_last_call_moves_nobody() -> None:
    first = "The goal is at position 8, 6. Your current position is at position 1, 1 1. There is a wall above you.\n"
    walk = Episode("maze_fo", (first, "x\n", "Failure\n"), ("move left\n",) * 2, (-1.0, -1.0), False, True)
    assert walked(walk, MAZE) == [(1, 11), (1, 10), (1, 10)]


@cases("start", [(0, 0), "ab", None, (1.5, 2), (), [1, 2, 3]])
def test_what_is_no_cell_is_no_start(start: Any) -> None:
    info = {"start": {"init_position": start}}
    assert walked(Episode("maze_po", ("x\n", "x\n"), ("move up\n",), (-1.0,), False, True, info=info), MAZE) is None
