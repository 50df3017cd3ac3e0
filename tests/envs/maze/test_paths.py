from typing import Any

import pytest

from lmrl.envs.maze.layouts import LAYOUTS, walked
from lmrl.envs.registry import make, make_policy
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Reply, Request, Start

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


@pytest.mark.parametrize("start", [(0, 0), "ab", None, (1.5, 2), (), [1, 2, 3]])
def test_what_is_no_cell_is_no_start(start: Any) -> None:
    info = {"start": {"init_position": start}}
    assert walked(Episode("maze_po", ("x\n", "x\n"), ("move up\n",), (-1.0,), False, True, info=info), MAZE) is None
