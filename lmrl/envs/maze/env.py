"""The maze: walk to the goal by four moves. Observations are the position (FO), only the walls (PO), or goal and walls.

The paper's list of actions has an error, which is corrected here: "move up" comes twice and "move down" is missing.
"""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeAlias

from lmrl.envs.base import Opening, TextEnv, Turn
from lmrl.envs.maze.layouts import FAILURE, MOVES, SUCCESS, Cell, Layout, find_layout
from lmrl.envs.task import ChatPrompt, Guide
from lmrl.errors import UserError, check_range, unknown
from lmrl.types import Request

__all__ = ["CHAT_FO", "CHAT_PO", "GUIDE_FO", "GUIDE_PO", "OBSERVE", "REWARDS", "Maze"]

_FAILURE_REWARD = -1.0  # whatever the reward function, as in the published benchmark

_WALLS = "{walls}\n"
_GOAL = "The goal is at position {goal}. {walls}\n"
_POSITION = "The goal is at position {goal}. Your current position is at position {cell}. {walls}\n"
OBSERVE: Mapping[str, str] = MappingProxyType({"position": _POSITION, "walls": _WALLS, "goal": _GOAL})
"""Observations by name: everything (FO), the walls around (PO), or goal and walls."""


@dataclass(frozen=True, slots=True)
class _Rewards:
    """Reward of the move that reaches the goal, of an unknown action, and of any other move."""

    goal: float
    illegal: float
    move: float


REWARDS: Mapping[str, _Rewards] = MappingProxyType(
    {
        "standard": _Rewards(goal=0.0, illegal=-4.0, move=-1.0),
        "illegal_penalty": _Rewards(goal=1.0, illegal=-1.0, move=0.0),
        "illegal_penalty_diff_scale": _Rewards(goal=1.0, illegal=-100.0, move=-1.0),
    }
)
"""Reward functions by name; the published results use ``standard``."""


class _Move(NamedTuple):
    """The effect of an action in a cell."""

    cell: Cell
    text: str
    reward: float
    at_goal: bool


_Table: TypeAlias = dict[Cell, tuple[str, dict[str, _Move]]]  # from a cell to its text and the effects of the actions

# The walls as the texts name them, in the order of the texts.
_NEIGHBOURS = (("to your right", (0, 1)), ("to your left", (0, -1)), ("above you", (-1, 0)), ("below you", (1, 0)))


class Maze(TextEnv):
    r"""A maze from the benchmark or a text file.

    The actions are ``move left\n``, ``move right\n``, ``move up\n`` and ``move down\n``. A wall leaves the player in
    place, and so does any other text, however close, which is illegal. The move that reaches the goal is answered by
    ``Success\n`` and terminates. After ``max_steps`` actions the clock is checked before the next one: that call moves
    no one, is answered by ``Failure\n`` and reward -1, and truncates. Its ``info["final_observation"]`` is for learners
    that bootstrap: what the player would have read had the clock not run out. If the move would have reached the goal,
    it is the text of the cell before it, because ``Success\n`` is no state that has a value.

    ``info`` also has ``position`` and ``goal``, each a (row, column).

    Args:
        layout: a name from `lmrl.envs.maze.layouts.LAYOUTS`, the path of a text file, or a `Layout`.
        observe: a name from `OBSERVE`.
        reward: a name from `REWARDS`.
        max_steps: actions before time is up.
        render_mode: see `TextEnv`.

    Raises:
        UserError: for an unknown name or a ``max_steps`` below 1.
    """

    reset_options: ClassVar[tuple[str, ...]] = ("init_position", "goal")

    def __init__(
        self,
        layout: str | Layout = "double_t_maze",
        observe: str = "position",
        reward: str = "standard",
        max_steps: int = 100,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(render_mode)
        if observe not in OBSERVE:
            raise unknown("maze observation", observe, OBSERVE)
        if reward not in REWARDS:
            raise unknown("maze reward", reward, REWARDS)
        check_range("[1, inf)", max_steps=max_steps)
        self.layout = find_layout(layout)
        self.max_steps = max_steps
        self._observe = observe
        self._rewards = REWARDS[reward]
        worst = min(self._rewards.illegal, self._rewards.move)
        self.return_range = (max_steps * worst + _FAILURE_REWARD, self._rewards.goal)
        self._goal: Cell = self.layout.goal
        self._cell: Cell = self.layout.goal
        self._table = _tabulate(self.layout, observe, self._rewards, self._goal)
        self._actions = 0

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(MOVES)

    def render(self) -> str:
        """Return the map, with ``P`` for the player and ``G`` for the goal."""
        marks = list(map(list, self.layout.rows))
        marks[self._goal[0]][self._goal[1]] = "G"
        marks[self._cell[0]][self._cell[1]] = "P"
        return "\n".join(map("".join, marks)) + "\n"

    def begin(self, options: dict[str, Any]) -> Opening:
        goal = self._free_cell("goal", options["goal"]) if "goal" in options else self.layout.goal
        cell = self._first_cell(goal, options)
        if goal != self._goal:
            self._table = _tabulate(self.layout, self._observe, self._rewards, goal)
        self._goal = goal
        self._cell = cell
        self._actions = 0
        task_id = f"{cell[0]},{cell[1]}>{goal[0]},{goal[1]}"
        start = {"init_position": cell, "goal": goal}
        return Opening(self._table[cell][0], task_id, start, info={"position": cell, "goal": goal})

    def _first_cell(self, goal: Cell, options: dict[str, Any]) -> Cell:
        if "init_position" in options:
            cell = self._free_cell("init_position", options["init_position"])
        elif self.layout.start is not None:
            cell = self.layout.start
        else:
            cells = list(self.layout.free)
            cells.remove(goal)
            return cells[int(self.np_random.integers(len(cells)))]
        if cell == goal:
            raise UserError(f"init_position must not be the goal, got {cell}")
        return cell

    def _free_cell(self, name: str, value: Any) -> Cell:
        try:
            row, col = map(operator.index, value)
        except (TypeError, ValueError):
            raise UserError(f"{name} must be a (row, column) of whole numbers, got {value!r}") from None
        if (row, col) not in self.layout.free:
            raise UserError(f"{name} must be a free cell of the maze, got {(row, col)}")
        return row, col

    def turn(self, action: str) -> Turn:
        here, moves = self._table[self._cell]
        move = moves.get(action)
        # The clock is checked before the action: this call moves no one, as in the published benchmark.
        if self._actions == self.max_steps:
            info = {"illegal": move is None, "success": False, "position": self._cell, "goal": self._goal}
            info["final_observation"] = here if move is None or move.at_goal else move.text
            return Turn(FAILURE, _FAILURE_REWARD, False, True, info)
        self._actions += 1
        if move is None:
            info = {"illegal": True, "success": False, "position": self._cell, "goal": self._goal}
            return Turn(here, self._rewards.illegal, False, False, info)
        cell, text, reward, at_goal = move
        self._cell = cell
        info = {"illegal": False, "success": at_goal, "position": cell, "goal": self._goal}
        return Turn(text, reward, at_goal, False, info)


# A maze has few cells, so all transitions are computed once per layout and goal, and shared by all mazes.
@lru_cache(maxsize=256)
def _tabulate(maze: Layout, observe: str, rewards: _Rewards, goal: Cell) -> _Table:
    texts: dict[Cell, str] = {}
    for cell in maze.free:
        texts[cell] = OBSERVE[observe].format(goal=_spaced(goal), cell=_spaced(cell), walls=_walls(maze, cell))
    table: _Table = {}
    for cell in maze.free:
        moves: dict[str, _Move] = {}
        for action in MOVES:
            after = maze.after(cell, action)
            if after == goal:
                moves[action] = _Move(after, SUCCESS, rewards.goal, at_goal=True)
            else:
                moves[action] = _Move(after, texts[after], rewards.move, at_goal=False)
        table[cell] = (texts[cell], moves)
    return table


def _walls(maze: Layout, cell: Cell) -> str:
    walls: list[str] = []
    for name, (up, side) in _NEIGHBOURS:
        if maze.rows[cell[0] + up][cell[1] + side] == "#":
            walls.append(name)
    if not walls:
        return "There are no walls near you."
    return f"There {'is a wall' if len(walls) == 1 else 'are walls'} {', '.join(walls)}."


def _spaced(cell: Cell) -> str:
    """Return row and column with a space between digits: (8, 10) is ``8, 1 0``."""
    row, col = cell
    return f"{' '.join(str(row))}, {' '.join(str(col))}"


def _changed_rewards(env: Mapping[str, Any]) -> str:
    if env.get("reward", "standard") == "standard":
        return ""
    rewards = REWARDS[env["reward"]]
    return (
        f"The rewards are changed: the step that reaches the goal earns {rewards.goal:g}, a text that is no action "
        f"{rewards.illegal:g}, any other step {rewards.move:g}."
    )


CHAT_FO = ChatPrompt(
    "an expert maze solver",
    """\
Objective: reach the goal of a maze in as few steps as possible.

Positions are given as (row, column), each number with a space between its digits: row 1 0 is row ten. Moving up takes
1 from the row, moving down adds 1; moving left takes 1 from the column, moving right adds 1. A wall leaves you where
you are. Every step costs 1, the one that reaches the goal nothing, and any text that is no action costs 4.

The actions: "move left", "move right", "move up", "move down".""",
    last_texts=7,
    example_turns=3,
    games=25,
    appendix=_changed_rewards,
)

CHAT_PO = ChatPrompt(
    "an expert maze solver",
    """\
Objective: reach the goal of a maze in as few steps as possible. You are told the walls around you, but neither where
you are nor where the goal is: remember the way that you have gone.

A wall leaves you where you are. Every step costs 1, the one that reaches the goal nothing, and any text that is no
action costs 4.

The actions: "move left", "move right", "move up", "move down".""",
    last_texts=20,
    temperature=0.7,
    games=25,
    appendix=_changed_rewards,
)


_RULES = (
    "A wall leaves you where you are. Each move costs 1, the one that reaches the goal nothing, and a text that is no "
    "action costs 4, unless the reward was changed. Time is up after 100 actions, unless that was changed."
)
_ACTION = "move left, move right, move up or move down."
_PAGE = "The buttons and the arrow keys do it, too."
# The wall that each action may run into.
_TOWARDS = {
    "move right\n": "to your right",
    "move left\n": "to your left",
    "move up\n": "above you",
    "move down\n": "below you",
}


def _note(request: Request, env: Mapping[str, Any]) -> str:
    """Return why the newest action moved no one, according to the texts before and after it."""
    if not request.actions:
        return ""
    action = request.actions[-1]
    before, now = request.observations[-2:]
    if now == SUCCESS:
        return ""
    illegal = "" if action in MOVES else f"{action.strip()[:40] or 'An empty line'} is no action"
    if now == FAILURE:
        return f"Time is up, and {illegal}." if illegal else "Time is up: this action did not count."
    if illegal:
        return f"{illegal}: you stay where you are."
    return f"There is a wall {_TOWARDS[action]}: you stay where you are." if _TOWARDS[action] in before else ""


GUIDE_FO = Guide(
    "Walk to the goal in as few moves as you can. Positions are row, column: up takes 1 from the row, right adds 1 "
    f"to the column. {_RULES}",
    _ACTION,
    (
        "move down",
        "The goal is at position 8, 6. Your current position is at position 3, 9. There are walls to your right, to "
        "your left.",
    ),
    note=_note,
    page=_PAGE,
)

GUIDE_PO = Guide(
    "Walk to the goal in as few moves as you can. You are told the walls around you, but neither where you are nor "
    f"where the goal is: remember the way that you have gone. {_RULES}",
    _ACTION,
    ("move down", "There are walls to your right, to your left."),
    note=_note,
    page=_PAGE,
)
