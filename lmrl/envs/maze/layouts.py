"""Maps of mazes, built in or read from text files, and the cells that an episode visits."""

import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from lmrl.errors import UserError, unknown
from lmrl.types import Episode

__all__ = [
    "FAILURE", "LAYOUTS", "MOVES", "SUCCESS", "Cell", "Layout", "find_layout", "load_layout", "starts_in", "starts_of",
    "walked",
]  # fmt: skip

SUCCESS = "Success\n"
"""The answer to the move that reaches the goal."""
FAILURE = "Failure\n"
"""The answer to the action with which the clock runs out."""

Cell: TypeAlias = tuple[int, int]
"""Row and column; row 0 is the top one."""

MOVES: Mapping[str, Cell] = MappingProxyType(
    {"move left\n": (0, -1), "move right\n": (0, 1), "move up\n": (-1, 0), "move down\n": (1, 0)}
)
"""The four actions and what they add to a cell."""

# The marks that a text file may hold, and what they become: a wall or a free cell.
_MARKS = {"#": "#", "1": "#", " ": " ", "0": " ", ".": " ", "G": " ", "S": " "}
_MARKS_IN_WORDS = "'#' or '1' wall; ' ', '0' or '.' free; G goal; S start"


@dataclass(frozen=True)
class Layout:
    """Walls, goal and, where it is fixed, the start.

    Example: ``Layout(("#####", "#   #", "#####"), goal=(1, 3))``

    Raises:
        UserError: naming row and column (both from 0), for rows of different lengths, a hole in the border, a goal or
            start inside a wall, a free cell from which the goal cannot be reached, or no free cell but the goal.
    """

    rows: tuple[str, ...]
    """One text per row: ``#`` is a wall, a space is free."""
    goal: Cell
    start: Cell | None = None
    """Where every episode starts; None: anywhere but at the goal."""

    def __post_init__(self) -> None:
        _check_rows(self.rows)
        for name, cell in (("goal", self.goal), ("start", self.start)):
            if cell is not None and cell not in self.free:
                raise UserError(f"the {name} must be a free cell, got {cell}")
        if self.free == (self.goal,):
            raise UserError("a maze needs a free cell besides the goal, to start from")
        reached = self.distances()
        for r, c in self.free:
            if (r, c) not in reached:
                raise UserError(f"the goal cannot be reached from row {r}, column {c}")

    @cached_property
    def free(self) -> tuple[Cell, ...]:
        """The cells without wall, row by row."""
        cells: list[Cell] = []
        for r, row in enumerate(self.rows):
            for c, mark in enumerate(row):
                if mark == " ":
                    cells.append((r, c))
        return tuple(cells)

    def after(self, cell: Cell, action: str) -> Cell:
        """Return the cell to which a legal action leads: a wall leaves the player in place."""
        row = cell[0] + MOVES[action][0]
        col = cell[1] + MOVES[action][1]
        return (row, col) if self.rows[row][col] == " " else cell

    def distances(self, goal: Cell | None = None) -> dict[Cell, int]:
        """Return the number of moves from each cell to ``goal`` (default: the layout's); without unreachable cells."""
        # Breadth-first from the goal: every move can be undone, so the way there is as long as the way back.
        first = self.goal if goal is None else goal
        distances = {first: 0}
        waiting = deque([first])
        while waiting:
            cell = waiting.popleft()
            for action in MOVES:
                neighbour = self.after(cell, action)
                if neighbour not in distances:
                    distances[neighbour] = distances[cell] + 1
                    waiting.append(neighbour)
        return distances


def starts_in(layout: Layout) -> tuple[Mapping[str, Any], ...]:
    """Return the reset options of every start: that of the layout, or all free cells but the goal."""
    cells = [cell for cell in layout.free if cell != layout.goal] if layout.start is None else [layout.start]
    return tuple({"init_position": cell} for cell in cells)


def starts_of(env: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    """Return the starts of evaluation if the arguments of the environment choose a layout, else None."""
    return starts_in(find_layout(env["layout"])) if "layout" in env else None


def load_layout(path: str | os.PathLike[str]) -> Layout:
    """Read a map: ``#`` or ``1`` wall; space, ``0`` or ``.`` free; ``G`` the goal; ``S`` (optional) the start.

    Raises:
        UserError: naming the file, for a file that is not UTF-8, an unknown mark, a second or missing goal, and all
            that `Layout` refuses.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such layout file")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error})") from error
    return _parse(text.rstrip("\n").split("\n"), str(path))


def find_layout(name: str | Layout) -> Layout:
    """Return a layout by its name (see `LAYOUTS`) or by the path of a text file; one that is a `Layout` stays as it is.

    Raises:
        UserError: if it is neither, or the file is wrong.
    """
    if isinstance(name, Layout):
        return name
    if name in LAYOUTS:
        return LAYOUTS[name]
    if os.path.isfile(name):
        return load_layout(name)
    raise unknown("maze layout (or path of a text file)", name, LAYOUTS)


def _parse(lines: Sequence[str], source: str) -> Layout:
    rows: list[str] = []
    places: dict[str, Cell] = {}  # cells of the marks G and S
    for r, line in enumerate(lines):
        row = ""
        for c, mark in enumerate(line):
            if mark not in _MARKS:
                raise UserError(f"{source}: unknown mark {mark!r} at row {r}, column {c}; known: {_MARKS_IN_WORDS}")
            if mark in places:
                raise UserError(f"{source}: a second {mark} at row {r}, column {c}; there may be one")
            if mark in ("G", "S"):
                places[mark] = (r, c)
            row += _MARKS[mark]
        rows.append(row)
    if "G" not in places:
        raise UserError(f"{source}: a layout needs one goal, marked G")
    try:
        return Layout(tuple(rows), places["G"], places.get("S"))
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _check_rows(rows: Sequence[str]) -> None:
    for r, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise UserError(f"row {r} has {len(row)} columns, row 0 has {len(rows[0])}")
        for c, mark in enumerate(row):
            if mark not in "# ":
                raise UserError(f"a cell must be '#' or ' ', got {mark!r} at row {r}, column {c}")
            if mark == " " and (r in (0, len(rows) - 1) or c in (0, len(row) - 1)):
                raise UserError(f"the border must be wall, but row {r}, column {c} is free")


_DOUBLE_T_MAZE = """\
#############
#     #     #
### ##### ###
### ##### ###
### ##### ###
###       ###
###### ######
###### ######
######G######
#############"""

_UMAZE = """\
#####
#   #
# # #
# #G#
#####"""

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "double_t_maze": _parse(_DOUBLE_T_MAZE.split("\n"), "double_t_maze"),
        "umaze": _parse(_UMAZE.split("\n"), "umaze"),
    }
)
"""The benchmark's mazes by name."""


_POSITION = re.compile(r"Your current position is at position ([\d ]+), ([\d ]+)\.")


def walked(episode: Episode, layout: Layout) -> list[Cell] | None:
    """Return the cell before each action and at the end, ``T + 1`` cells, or None if the first one is not known.

    It is known from ``info["start"]`` or from the first text; all others follow from the actions.
    """
    cell = _first_cell(episode)
    if cell is None or cell not in layout.free:
        return None
    cells = [cell]
    for turn, action in enumerate(episode.actions):
        # The action after the last allowed one does not move: the clock is checked before it.
        is_last = turn + 1 == len(episode)
        out_of_time = is_last and episode.truncated and episode.observations[-1] == FAILURE
        cell = cells[-1]
        if action in MOVES and not out_of_time:
            cell = layout.after(cell, action)
        cells.append(cell)
    return cells


def _first_cell(episode: Episode) -> Cell | None:
    start = episode.info.get("start")
    if isinstance(start, Mapping) and "init_position" in start:
        return _cell(start["init_position"])
    # The text has a space between the digits of a number.
    match = _POSITION.search(episode.observations[0])
    return (int(match[1].replace(" ", "")), int(match[2].replace(" ", ""))) if match else None


def _cell(pair: Any) -> Cell | None:
    """Check a cell of a data file, which may hold anything."""
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        return None
    row, col = pair
    return (row, col) if isinstance(row, int) and isinstance(col, int) else None
