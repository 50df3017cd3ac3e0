"""Players of the maze, and folders of finished runs of theirs; `tests.conftest` makes fixtures of them known."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import lmrl
from lmrl.envs.maze.layouts import LAYOUTS, MOVES
from lmrl.envs.maze.probe import probe_maze
from lmrl.evaluation.evaluate import evaluate
from lmrl.evaluation.result_json import write_json
from lmrl.evaluation.run_folder import write_evaluation
from lmrl.types import Reply, Request

MAZE = LAYOUTS["double_t_maze"]
DISTANCE = MAZE.distances()


def near_the_goal() -> int:
    """A seed with which the maze begins two steps above its goal."""
    env = lmrl.make("maze_fo")
    return next(seed for seed in range(500) if env.reset(seed=seed)[1]["start"]["init_position"] == (6, 6))


class Player:
    """A policy from a function of one request."""

    def __init__(self, say: Callable[[Request], str]) -> None:
        self._say = say

    def act(self, requests: Sequence[Request]) -> list[Reply]:
        return [Reply(self._say(request)) for request in requests]


class Seer(Player):
    """Knows the shortest way, and its length."""

    def __init__(self) -> None:
        super().__init__(lambda request: min(MOVES, key=lambda move: DISTANCE[MAZE.after(_cell(request), move)]))

    def state_values(self, requests: Sequence[Request]) -> list[float]:
        return [1.0 - DISTANCE[_cell(request)] for request in requests]


def _cell(request: Request) -> tuple[int, int]:
    row, col = request.info["position"]
    return row, col


@pytest.fixture(scope="session")
def seer() -> Seer:
    return Seer()


@pytest.fixture(scope="session")
def player() -> type[Player]:
    return Player


@pytest.fixture(scope="session")
def run_of() -> Callable[..., Path]:
    """Lay down the folder of a finished run with the real writers."""

    def make(
        runs: Path, name: str, policy: Player, task: str = "maze_fo", episodes: int = 25, metrics: str = ""
    ) -> Path:
        folder = runs / task / name
        probe = probe_maze(policy, task) if isinstance(policy, Seer) else None
        write_evaluation(evaluate(policy, task, episodes, name=name), folder / "evaluation", probe)
        command = f"lmrl fit --config configs/{task}/{name}.yaml --seed_everything 0"
        write_json({"fit": {"command": command, "seconds": 303.0}}, folder / "timing.json")
        if metrics:
            (folder / "metrics.csv").write_text(metrics)
        return folder

    return make
