"""Drawings of a maze: the map and the way through it, or only the cells around the player."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from rich.text import Text

from lmrl.envs.maze.env import Maze
from lmrl.envs.maze.layouts import Cell, Layout, walked
from lmrl.envs.task import Picture
from lmrl.types import Episode, Request

__all__ = ["MazePicture", "draw_maze"]

_SEEN = "on #f2f4f6"
# The signs have the colour of their ground: they show only in terminals without colours.
_WALL_SIGN = ("██", "#5f6872 on #5f6872")
_FLOOR_SIGN = ("· ", f"#f2f4f6 {_SEEN}")


class MazePicture(Picture):
    """The map and the way so far, or the cells around while a person plays and the texts hide the position."""

    kind = "maze"
    script = "lmrl.envs.maze:picture.js"
    style = "lmrl.envs.maze:picture.css"

    @cached_property
    def layout(self) -> Layout:
        """The map of the environment."""
        env = self._make().unwrapped
        assert isinstance(env, Maze)
        return env.layout

    def facts(self) -> Mapping[str, Any]:
        return {"rows": list(self.layout.rows), "goal": list(self.layout.goal)}

    def states(self, episode: Episode) -> list[Cell] | None:
        """The cells; None if the first one is not known."""
        return walked(episode, self.layout)

    def live(self, episode: Episode, hidden: bool) -> tuple[Mapping[str, Any], Sequence[Any] | None]:
        if hidden and not _tells_position(episode.observations[0]):
            around = _around(self.layout, episode.info["position"])
            return {"rows": around, "goal": None}, [(1, 1)] * len(episode.observations)
        return {**self.facts(), "goal": list(episode.info["goal"])}, self.states(episode)

    def terminal(self, request: Request) -> Text | None:
        return draw_maze(self.layout, request)


def draw_maze(layout: Layout, request: Request) -> Text | None:
    """Draw the map if the text tells the position, otherwise only what it tells: the four cells around."""
    if "position" not in request.info:
        return None
    cell = _cell(request.info["position"])
    goal = _cell(request.info["goal"])
    everything = _tells_position(request.observations[0])
    rows = range(len(layout.rows)) if everything else range(cell[0] - 1, cell[0] + 2)
    cols = range(len(layout.rows[0])) if everything else range(cell[1] - 1, cell[1] + 2)
    drawn = Text()
    for row in rows:
        for col in cols:
            # The texts say nothing about the diagonal neighbours.
            if everything or row == cell[0] or col == cell[1]:
                sign, style = _square(layout, (row, col), cell, goal if everything else None)
                drawn.append(sign, style)
            else:
                drawn.append("  ")
        drawn.append("\n")
    drawn.right_crop(1)
    return drawn


def _tells_position(text: str) -> bool:
    return "current position" in text


def _square(layout: Layout, at: Cell, cell: Cell, goal: Cell | None) -> tuple[str, str]:
    if at == cell:
        return "◉ ", f"bold #b4461f {_SEEN}"
    if at == goal:
        return "★ ", f"bold #a07400 {_SEEN}"
    return _WALL_SIGN if layout.rows[at[0]][at[1]] == "#" else _FLOOR_SIGN


def _cell(pair: Sequence[int]) -> Cell:
    row, col = pair
    return row, col


def _around(layout: Layout, cell: Cell) -> list[str]:
    """Return a map of the cell and its four neighbours: ``["?#?", "# #", "? ?"]``."""
    row, col = cell
    here = layout.rows[row][col - 1 : col + 2]
    return [f"?{layout.rows[row - 1][col]}?", here, f"?{layout.rows[row + 1][col]}?"]
