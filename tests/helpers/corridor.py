"""The corridor of `tests.helpers.doubles` as a task that can be played: four squares, all values known by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium

from lmrl.envs import registry
from lmrl.envs.base import Opening, TextEnv, Turn
from lmrl.envs.scores import Scores
from lmrl.envs.task import Task

GOAL = 3
STARTS = tuple({"square": square} for square in range(GOAL))
_MOVES = {"L": -1, "R": 1}


class Corridor(TextEnv):
    """A corridor of squares 0 to 2 and the goal. A move costs 1, but the one that reaches the goal costs nothing."""

    reset_options: ClassVar[tuple[str, ...]] = ("square",)

    def __init__(self, max_steps: int = 3, render_mode: str | None = "ansi") -> None:
        super().__init__(render_mode)
        self.return_range = (-float(max_steps), 0.0)
        self._max_steps = max_steps
        self._square = 0
        self._steps = 0

    def begin(self, options: dict[str, Any]) -> Opening:
        drawn = int(self.np_random.integers(GOAL))
        self._square = int(options.get("square", drawn))
        self._steps = 0
        return Opening(str(self._square), task_id=str(self._square), start={"square": self._square})

    def turn(self, action: str) -> Turn:
        self._square = min(GOAL, max(0, self._square + _MOVES.get(action, 0)))
        self._steps += 1
        there = self._square == GOAL
        info = {"illegal": action not in _MOVES, "success": there}
        out_of_time = not there and self._steps == self._max_steps
        return Turn(str(self._square), float(there) - 1.0, terminated=there, truncated=out_of_time, info=info)


@contextmanager
def corridor_task() -> Iterator[None]:
    """Register the task ``corridor`` in the context: it reads and says single letters, evaluated from each square."""
    row = Task(
        name="corridor",
        description="Walk to the right.",
        env_id="tests/Corridor-v0",
        entry_point="tests.helpers.corridor:Corridor",
        max_action_tokens=1,
        dataset_size=24,
        scores=Scores(-3.0, None, None, {}, {}),
        last_texts=1,
        starts=STARTS,
    )
    registry.register(row)
    try:
        yield
    finally:
        registry._TASKS.pop(row.name)
        gymnasium.registry.pop(row.env_id)
