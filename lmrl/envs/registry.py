"""The tasks by name: their environments, scripted players and recording recipes."""

import inspect
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from types import NoneType
from typing import Any, Protocol, TypeAlias, cast, get_args

import gymnasium
from gymnasium.envs.registration import load_env_creator

from lmrl.envs.base import TextEnv
from lmrl.envs.maze.layouts import LAYOUTS, MOVES
from lmrl.envs.published import PUBLISHED
from lmrl.envs.task import Recording, Task
from lmrl.errors import UserError, unknown
from lmrl.types import Policy

__all__ = [
    "ROWS",
    "Task",
    "make",
    "make_policy",
    "may_choose",
    "policy_names",
    "recorded_arguments",
    "recording",
    "register",
    "task",
    "tasks",
]

_MAZE = LAYOUTS["double_t_maze"]
_MAZE_CHOICES = {
    "layout": tuple(LAYOUTS),
    "observe": ("position", "walls", "goal"),
    "reward": ("standard", "illegal_penalty", "illegal_penalty_diff_scale"),
}
_OPPONENTS = ("alphabeta", "random")  # those without a program of their own
_MAZE_STARTS = tuple({"init_position": cell} for cell in _MAZE.free if cell != _MAZE.goal)

# A new game adds its rows here; the order is that of the results tables.
ROWS = (
    Task(
        name="maze_fo",
        description="walk to the goal, told its position, one's own, and the walls around",
        env_id="lmrl/MazeFO-v0",
        entry_point="lmrl.envs.maze.env:Maze",
        kwargs={"observe": "position"},
        choices=_MAZE_CHOICES,
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
        entry_point="lmrl.envs.maze.env:Maze",
        kwargs={"observe": "walls"},
        choices=_MAZE_CHOICES,
        last_texts=40,
        max_action_tokens=8,
        actions=tuple(MOVES),
        dataset_size=1_240,
        paper_filter="success",
        starts=_MAZE_STARTS,
        scores=PUBLISHED["maze_po"],
    ),
    Task(
        name="text_nav_fo",
        description="put the stale food into the fridge, told the room, what is in it and what can be done",
        env_id="lmrl/TextNavFO-v0",
        entry_point="lmrl.envs.text_nav.env:TextNav",
        kwargs={"observe": "full"},
        choices={"observe": ("full", "partial")},
        last_texts=1,
        max_action_tokens=24,
        dataset_size=2_500,
        paper_filter="success",
        scores=PUBLISHED["text_nav_fo"],
    ),
    Task(
        name="text_nav_po",
        description="put the stale food into the fridge, told neither the room's name nor the inventory",
        env_id="lmrl/TextNavPO-v0",
        entry_point="lmrl.envs.text_nav.env:TextNav",
        kwargs={"observe": "partial"},
        choices={"observe": ("full", "partial")},
        max_action_tokens=24,
        dataset_size=2_500,
        paper_filter="success",
        scores=PUBLISHED["text_nav_po"],
    ),
    Task(
        name="wordle",
        description="find a hidden word in six guesses, told after each which letters are right",
        env_id="lmrl/Wordle-v0",
        entry_point="lmrl.envs.wordle.env:Wordle",
        max_action_tokens=8,
        dataset_size=100_000,
        paper_filter="top 30 % by return",
        scores=PUBLISHED["wordle"],
    ),
    Task(
        name="chess",
        description="win a game of chess as White",
        env_id="lmrl/Chess-v0",
        entry_point="lmrl.envs.chess.env:Chess",
        choices={"opponent": _OPPONENTS},
        last_texts=1,
        max_action_tokens=12,
        dataset_size=1_000,
        dataset_version=2,
        paper_filter="success",
        scores=PUBLISHED["chess"],
    ),
    Task(
        name="endgames",
        description="mate the lone black king with queen, rook, or both",
        env_id="lmrl/Endgames-v0",
        entry_point="lmrl.envs.endgames.env:Endgames",
        choices={"opponent": _OPPONENTS, "piece_sets": ("kQK", "kRK", "kQRK", "kRRK")},
        last_texts=1,
        max_action_tokens=12,
        dataset_size=40_000,
        paper_filter="success",
        starts=tuple({"test": number} for number in range(645)),
        selection=tuple({"selection": number} for number in range(128)),
        scores=PUBLISHED["endgames"],
    ),
    Task(
        name="twenty_questions",
        description="find a hidden object by at most twenty questions that are answered by yes or no",
        env_id="lmrl/TwentyQuestions-v0",
        entry_point="lmrl.envs.twenty_questions.env:TwentyQuestions",
        max_action_tokens=24,
        dataset_size=10_000,
        paper_filter="top 10 % by return",
        scores=PUBLISHED["twenty_questions"],
    ),
    Task(
        name="guess_city",
        description="find out by at most twenty questions in which city somebody lives",
        env_id="lmrl/GuessCity-v0",
        entry_point="lmrl.envs.guess_city.env:GuessCity",
        max_action_tokens=24,
        dataset_size=10_000,
        dataset_version=2,
        paper_filter="top 10 % by return",
        scores=PUBLISHED["guess_city"],
    ),
    Task(
        name="car_dealer",
        description="sell a car to a buyer whose wishes, budget and weakness show only in what they say",
        env_id="lmrl/CarDealer-v0",
        entry_point="lmrl.envs.car_dealer.env:CarDealer",
        choices={"reward": ("revenue", "fancy")},
        max_action_tokens=48,
        dataset_size=10_000,
        paper_filter="top 10 % by return",
        scores=PUBLISHED["car_dealer"],
    ),
)


_LARGEST = 2**53


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
    env = _creator(row)
    known = inspect.signature(env).parameters
    for argument in kwargs:
        if argument not in known:
            raise unknown(f"argument of task {name}", argument, known)
    return env(**{**row.kwargs, **kwargs})


def _creator(row: Task) -> Callable[..., TextEnv]:
    # What this loads has the type that `register` was given.
    env: Callable[..., TextEnv] = load_env_creator(row.entry_point)  # type: ignore[assignment]
    return env


def recorded_arguments(name: str, recorded: Any, given: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Arguments of a task's environment that a data file names, and those that the user gives, which come first.

    A file may come from anyone. It chooses numbers and true or false where the environment takes them, and texts out of
    `Task.choices`; who is meant to be trusted with a path or a program is the user alone. A second speaker
    (``partner``) is left out: whoever replays a dialogue says what answers.

    Args:
        name: of the task.
        recorded: ``env`` of the file's metadata.
        given: what the user says; None: nothing.
        where: the file, for the message.

    Raises:
        UserError: ``recorded`` holds anything else that the user has not given.
    """
    if not isinstance(recorded, Mapping):
        raise UserError(f"{where}: env of its metadata must be an object, got {recorded!r:.60}")
    chosen = dict(given or {})
    known = inspect.signature(_creator(task(name))).parameters
    for argument, value in recorded.items():
        if argument in chosen or argument == "partner":
            continue
        if argument not in known:
            raise UserError(f"{where}: env of its metadata has {argument!r:.60}, which task {name} has not")
        if not may_choose(name, argument, value):
            raise UserError(
                f"{where}: its metadata sets {argument} of the environment to {value!r:.80}; a file cannot choose "
                f"paths, programs and what is not listed, only you can: --env {argument}=..."
            )
        chosen[argument] = value
    return chosen


def may_choose(name: str, argument: str, value: Any) -> bool:
    """Whether somebody who is not trusted (a data file, a request to a server) may choose an environment's argument.

    Args:
        name: of the task.
        argument: of its environment; one that it does not have may not be chosen.
        value: a number, true, false or None of a type that the argument takes, or words out of `Task.choices`.
    """
    row = task(name)
    known = inspect.signature(_creator(row), eval_str=True).parameters
    if argument not in known:
        return False
    kinds = get_args(known[argument].annotation) or (known[argument].annotation,)
    if isinstance(value, str):
        choices = row.choices.get(argument, ())
        return bool(value.split()) and all(word in choices for word in value.split(" "))
    if value is None or isinstance(value, bool):
        return (NoneType if value is None else bool) in kinds
    if isinstance(value, int):
        return (int in kinds or float in kinds) and abs(value) <= _LARGEST
    return isinstance(value, float) and float in kinds and math.isfinite(value)


def register(row: Task) -> None:
    """Make a task of your own known in this process, under its name and under its id in Gymnasium.

    ``row.entry_point`` is ``module:class``; a class of a notebook is ``__main__:MyGame``. Registering a name again
    replaces the task.

    Raises:
        UserError: the name is that of a task of the benchmark.
    """
    if row.name in {known.name for known in ROWS}:
        raise UserError(f"name must not be that of a task of the benchmark, got {row.name!r}")
    _TASKS[row.name] = row
    gymnasium.registry.pop(row.env_id, None)
    gymnasium.register(row.env_id, entry_point=row.entry_point, kwargs=dict(row.kwargs))


_TASKS = {row.name: row for row in ROWS}

for _row in ROWS:
    # Again under the same id (a reloaded module): Gymnasium would warn.
    if _row.env_id not in gymnasium.registry:
        gymnasium.register(_row.env_id, entry_point=_row.entry_point, kwargs=dict(_row.kwargs))


_Players: TypeAlias = Mapping[str, Callable[[Mapping[str, Any]], Policy]]


class _Behaviours(Protocol):
    """What the module of a game's behaviours holds."""

    PLAYERS: _Players

    def recording(self, task_name: str, env: Mapping[str, Any]) -> Recording: ...


# A new game adds its module here. It is imported when it is needed: the chess rules are a package of their own.
_MODULES = {
    "maze_fo": "lmrl.envs.maze.players",
    "maze_po": "lmrl.envs.maze.players",
    "text_nav_fo": "lmrl.envs.text_nav.players",
    "text_nav_po": "lmrl.envs.text_nav.players",
    "wordle": "lmrl.envs.wordle.players",
    "chess": "lmrl.envs.chess.players",
    "endgames": "lmrl.envs.endgames.players",
    "twenty_questions": "lmrl.envs.twenty_questions.players",
    "guess_city": "lmrl.envs.guess_city.players",
    "car_dealer": "lmrl.envs.car_dealer.players",
}


def policy_names(task_name: str) -> tuple[str, ...]:
    """Names of the scripted players of a task; a task that was only registered has none.

    Raises:
        UserError: for an unknown task.
    """
    return tuple(_players(task_name))


def make_policy(task_name: str, name: str, env: Mapping[str, Any] | None = None) -> Policy:
    """The player of that name: ``random``, ``behaviour`` (the dataset's, let loose) or ``optimal`` where it exists.

    Args:
        task_name: name of the task.
        name: one of `policy_names`.
        env: arguments of the environment that it will play in, where they are not the task's own.

    Raises:
        UserError: for an unknown task or player; it lists the known ones.
    """
    players = _players(task_name)
    if name not in players:
        raise unknown(f"policy of {task_name}", name, players)
    return players[name](env or {})


def recording(task_name: str, env: Mapping[str, Any] | None = None) -> Recording:
    """The recipe of a task's dataset, in an environment with those arguments.

    Raises:
        UserError: for an unknown task, or one that was only registered and has no recipe.
    """
    behaviours = _behaviours(task_name)
    if behaviours is None:
        raise UserError(f"task {task_name!r} has no recipe for a dataset; give the path of one (data.init_args.path)")
    return behaviours.recording(task_name, env or {})


def _players(task_name: str) -> _Players:
    behaviours = _behaviours(task_name)
    return {} if behaviours is None else behaviours.PLAYERS


def _behaviours(task_name: str) -> _Behaviours | None:
    module = _MODULES.get(task(task_name).name)
    return None if module is None else cast(_Behaviours, import_module(module))
