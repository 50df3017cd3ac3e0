"""Maps of mazes, read from text files or built in, and the cells that an episode went through."""

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

__all__ = ["LAYOUTS", "MOVES", "Cell", "Layout", "find_layout", "load_layout", "walked"]

Cell: TypeAlias = tuple[int, int]
"""Row and column; row 0 is the top one."""

MOVES: Mapping[str, Cell] = MappingProxyType(
    {"move left\n": (0, -1), "move right\n": (0, 1), "move up\n": (-1, 0), "move down\n": (1, 0)}
)
"""The four actions and what they add to a cell."""

# What a text file may hold, and whether it is a wall.
_MARKS = {"#": "#", "1": "#", " ": " ", "0": " ", ".": " ", "G": " ", "S": " "}
_MARKS_IN_WORDS = "'#' or '1' wall; ' ', '0' or '.' free; G goal; S start"


@dataclass(frozen=True)
class Layout:
    """Walls, goal and, where it is fixed, the start.

    Example: ``Layout(("#####", "#   #", "#####"), goal=(1, 3))``

    Raises:
        UserError: naming row and column (both from 0), for rows of different lengths, a hole in the border, a goal or
            start inside a wall, or a free cell from which the goal cannot be reached.
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
        reached = self.distances()
        for r, c in self.free:
            if (r, c) not in reached:
                raise UserError(f"the goal cannot be reached from row {r}, column {c}")

    @cached_property
    def free(self) -> tuple[Cell, ...]:
        """The cells without wall, row by row."""
        return tuple((r, c) for r, row in enumerate(self.rows) for c, mark in enumerate(row) if mark == " ")

    def after(self, cell: Cell, action: str) -> Cell:
        """Where a legal action leads: a wall leaves the player in place."""
        row = cell[0] + MOVES[action][0]
        col = cell[1] + MOVES[action][1]
        return (row, col) if self.rows[row][col] == " " else cell

    def distances(self, goal: Cell | None = None) -> dict[Cell, int]:
        """Number of moves from each cell to ``goal`` (default: the layout's); cells without a way are left out."""
        first = self.goal if goal is None else goal
        found = {first: 0}
        waiting = deque([first])
        while waiting:
            cell = waiting.popleft()
            # Moves can be undone, so the way there is as long as the way back.
            for neighbour in (self.after(cell, action) for action in MOVES):
                if neighbour not in found:
                    found[neighbour] = found[cell] + 1
                    waiting.append(neighbour)
        return found


def load_layout(path: str | os.PathLike[str]) -> Layout:
    """Read a map: ``#`` or ``1`` wall; space, ``0`` or ``.`` free; ``G`` the goal; ``S`` (optional) the start.

    Raises:
        UserError: naming the file, for an unknown mark, a second or missing goal, and all that `Layout` refuses.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such layout file")
    return _parse(path.read_text(encoding="utf-8").rstrip("\n").split("\n"), str(path))


def find_layout(name: str) -> Layout:
    """A layout by name (see `LAYOUTS`) or by the path of a text file.

    Raises:
        UserError: if it is neither, or the file is wrong.
    """
    if name in LAYOUTS:
        return LAYOUTS[name]
    if os.path.isfile(name):
        return load_layout(name)
    raise unknown("maze layout (or path of a text file)", name, LAYOUTS)


def _parse(lines: Sequence[str], source: str) -> Layout:
    for r, line in enumerate(lines):
        for c, mark in enumerate(line):
            if mark not in _MARKS:
                raise UserError(f"{source}: unknown mark {mark!r} at row {r}, column {c}; known: {_MARKS_IN_WORDS}")
    goal = _only(lines, "G", source)
    start = _only(lines, "S", source)
    if goal is None:
        raise UserError(f"{source}: a layout needs one goal, marked G")
    try:
        return Layout(tuple("".join(_MARKS[mark] for mark in line) for line in lines), goal, start)
    except UserError as error:
        raise UserError(f"{source}: {error}") from error


def _only(lines: Sequence[str], wanted: str, source: str) -> Cell | None:
    cells = [(r, c) for r, line in enumerate(lines) for c, mark in enumerate(line) if mark == wanted]
    if len(cells) > 1:
        raise UserError(f"{source}: a second {wanted} at row {cells[1][0]}, column {cells[1][1]}; there may be one")
    return cells[0] if cells else None


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
    """The cell before each action and at the end, ``T + 1`` of them; None if the first one is not known.

    It is known from ``info["start"]`` or from the first text; all others follow from the actions.
    """
    cell = _first_cell(episode)
    if cell is None or cell not in layout.free:
        return None
    cells = [cell]
    for turn, action in enumerate(episode.actions):
        out_of_time = episode.truncated and turn + 1 == len(episode) and episode.observations[-1] == "Failure\n"
        cells.append(layout.after(cells[-1], action) if action in MOVES and not out_of_time else cells[-1])
    return cells


def _first_cell(episode: Episode) -> Cell | None:
    start = episode.info.get("start")
    if isinstance(start, Mapping) and "init_position" in start:
        return _cell(start["init_position"])
    told = _POSITION.search(episode.observations[0])
    return _cell([int(digits.replace(" ", "")) for digits in told.groups()]) if told else None


def _cell(pair: Any) -> Cell | None:
    whole = isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(number, int) for number in pair)
    return (pair[0], pair[1]) if whole else None
