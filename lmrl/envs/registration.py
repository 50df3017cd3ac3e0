"""The tasks by name: one frozen record says everything that is not the game itself."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

from lmrl.envs.base import TextEnv
from lmrl.envs.layouts import LAYOUTS, MOVES
from lmrl.envs.scores import PUBLISHED, Scores
from lmrl.errors import unknown

__all__ = ["Task", "make", "task", "tasks"]


@dataclass(frozen=True)
class Task:
    """A row of the benchmark."""

    name: str
    description: str
    env_id: str
    """Id for ``gymnasium.make``."""
    entry_point: str
    """Where the environment is, ``module:class``; imported when it is made."""
    max_action_tokens: int
    """Longest action that a policy may say."""
    dataset_size: int
    """Episodes in the default dataset."""
    paper_filter: str
    """Which episodes the paper's filtered BC keeps."""
    scores: Scores
    last_texts: int | None = None
    """How many of the newest texts (observations and actions) a policy reads; None: all."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the environment that make it this task."""
    actions: tuple[str, ...] = ()
    """All legal actions where they can be listed."""
    behaviour: str = "behaviour"
    """Name of the player that recorded the dataset."""
    starts: tuple[Mapping[str, Any], ...] = ()
    """Reset options that evaluation cycles through; empty: seeds decide."""


def tasks() -> dict[str, Task]:
    """All tasks by name."""
    return dict(_TASKS)


def task(name: str) -> Task:
    """The task of that name.

    Raises:
        UserError: for an unknown name; it lists the known ones.
    """
    if name not in _TASKS:
        raise unknown("task", name, _TASKS)
    return _TASKS[name]


def make(name: str, **kwargs: Any) -> TextEnv:
    """Make the environment of a task, bare: no wrappers between the caller and the game.

    Args:
        name: a name from `tasks`.
        kwargs: arguments of the environment that replace those of the task.

    Raises:
        UserError: for an unknown task or argument.
    """
    row = task(name)
    # What this loads has the type that `register` was given.
    env: Callable[..., TextEnv] = load_env_creator(row.entry_point)  # type: ignore[assignment]
    known = inspect.signature(env).parameters
    for argument in kwargs:
        if argument not in known:
            raise unknown(f"argument of task {name}", argument, known)
    return env(**{**row.kwargs, **kwargs})


_MAZE = LAYOUTS["double_t_maze"]
_MAZE_STARTS = tuple({"init_position": cell} for cell in _MAZE.free if cell != _MAZE.goal)

# A new game adds its rows here; the order is that of the results tables.
_ROWS = (
    Task(
        name="maze_fo",
        description="walk to the goal, told its position, one's own, and the walls around",
        env_id="lmrl/MazeFO-v0",
        entry_point="lmrl.envs.maze:Maze",
        kwargs={"observe": "position"},
        last_texts=1,
        max_action_tokens=8,
        actions=tuple(MOVES),
        dataset_size=1_240,
        paper_filter="success",
        starts=_MAZE_STARTS,
        scores=PUBLISHED["maze_fo"],
    ),
    Task(
        name="maze_po",
        description="walk to the goal, told only the walls around",
        env_id="lmrl/MazePO-v0",
        entry_point="lmrl.envs.maze:Maze",
        kwargs={"observe": "walls"},
        last_texts=40,
        max_action_tokens=8,
        actions=tuple(MOVES),
        dataset_size=1_240,
        paper_filter="success",
        starts=_MAZE_STARTS,
        scores=PUBLISHED["maze_po"],
    ),
)
_TASKS = {row.name: row for row in _ROWS}

for _row in _ROWS:
    # Again under the same id (a reloaded module): Gymnasium would warn.
    if _row.env_id not in gymnasium.registry:
        gymnasium.register(_row.env_id, entry_point=_row.entry_point, kwargs=dict(_row.kwargs))
