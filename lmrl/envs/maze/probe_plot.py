"""A picture of a policy in a maze: V as colour and number (each policy with its own scale), greedy moves as arrows.

A move that is not on a shortest path is dashed and framed; an action that is no move is drawn as a question mark.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba
from matplotlib.patches import Rectangle

from lmrl.envs.maze.layouts import MOVES, Cell
from lmrl.envs.maze.probe import MazeProbe
from lmrl.envs.task import ProbePlot

__all__ = ["PROBE_PLOT"]

_WALL = "#D5D8DD"
_FREE = "#FFFFFF"
_WRONG = "#D81B60"
_Paint: TypeAlias = Callable[[float], tuple[float, float, float, float]]
_REACH = 0.27
"""Half an arrow, in cells."""


def _size(probe: MazeProbe) -> tuple[float, float]:
    _, _, height, width = _crop(probe.rows)
    return 0.47 * width + 0.9, 0.47 * height + 0.5


def _paint(probe: MazeProbe, axis: Axes) -> _Paint | None:
    if not probe.values:
        return None
    # The colours span this policy's own values: scales of different policies cannot be compared.
    low = min(probe.values)
    high = max(probe.values)
    norm = Normalize(low, high if high > low else low + 1)
    colours = matplotlib.colormaps["viridis"]
    bar = axis.figure.colorbar(ScalarMappable(norm, colours), ax=axis, shrink=0.7, aspect=24, pad=0.02)
    bar.set_label("V (discounted reward to come)", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    return lambda value: colours(float(norm(value)))


def _crop(rows: Sequence[str]) -> tuple[int, int, int, int]:
    """Return top, left, height and width of the part to draw: the free cells and one ring of wall around them."""
    free = np.argwhere(np.array(list(map(list, rows))) != "#")  # (number of free cells, 2)
    top, left = (free.min(axis=0) - 1).tolist()
    bottom, right = (free.max(axis=0) + 2).tolist()
    return top, left, bottom - top, right - left


def _draw(axis: Axes, name: str, probe: MazeProbe) -> None:
    top, left, height, width = _crop(probe.rows)
    # Half of the outer ring of walls is enough to see that it is one.
    axis.set_xlim(left, left + width - 1)
    axis.set_ylim(top + height - 1, top)
    axis.add_patch(Rectangle((left, top), width - 1, height - 1, facecolor=_WALL, edgecolor="none"))
    for row in range(top, top + height):
        for col in range(left, left + width):
            if probe.rows[row][col] != "#":
                _cell(axis, (row, col), _FREE)
    axis.text(probe.goal[1], probe.goal[0], "★", ha="center", va="center", fontsize=17, color="#C28A00")
    paint = _paint(probe, axis)
    for index in range(len(probe.positions)):
        _state(axis, probe, index, paint)
    axis.set_aspect("equal")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.spines[:].set_visible(False)
    axis.set_title(_title(name, probe), fontsize=10)


def _title(name: str, probe: MazeProbe) -> str:
    count = len(probe.positions)
    title = f"{name}: greedy move right in {probe.right} of {count} cells"
    if probe.best_possible < count:
        title += f"\n(from the first observation alone, at most {probe.best_possible})"
    return title


def _state(axis: Axes, probe: MazeProbe, index: int, paint: _Paint | None) -> None:
    row, col = probe.positions[index]
    value = None if probe.values is None else probe.values[index]
    colour = _FREE if value is None or paint is None else paint(value)
    # Dark ink on light colours; the weights are those of luma (recommendation BT.601 of the ITU).
    red, green, blue, _ = to_rgba(colour)
    ink = "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "#FFFFFF"
    _cell(axis, (row, col), colour)
    # The arrow moves up a little where the value stands below it.
    middle = row if value is None else row - 0.14
    _move(axis, (middle, col), MOVES.get(probe.moves[index]), probe.is_right(index), ink)
    if value is not None:
        number = f"{value:.1f}".replace("-", "\N{MINUS SIGN}")
        axis.text(col, row + 0.31, number, ha="center", va="center", fontsize=7, color=ink)
    if not probe.is_right(index):
        axis.add_patch(Rectangle((col - 0.45, row - 0.45), 0.9, 0.9, fill=False, edgecolor=_WRONG, linewidth=2.2))


def _cell(axis: Axes, position: Cell, colour: object) -> None:
    row, col = position
    axis.add_patch(Rectangle((col - 0.48, row - 0.48), 0.96, 0.96, facecolor=colour, edgecolor="none"))


def _move(axis: Axes, middle: tuple[float, float], move: Cell | None, right: bool, ink: str) -> None:
    row, col = middle
    if move is None:
        axis.text(col, row, "?", ha="center", va="center", fontsize=12, fontweight="bold", color=ink)
        return
    down = move[0] * _REACH
    across = move[1] * _REACH
    # Where a number stands below, a vertical arrow has less room than a horizontal one.
    down *= 0.75
    axis.annotate(
        "",
        xy=(col + across, row + down),
        xytext=(col - across, row - down),
        arrowprops={
            "arrowstyle": "-|>,head_width=0.22,head_length=0.38",
            "color": ink,
            "linewidth": 1.6,
            "linestyle": "-" if right else (0, (2, 1)),
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )


PROBE_PLOT = ProbePlot(
    "maze",
    "V of each cell as colour and number, the greedy move as an arrow; wrong moves are dashed and framed, ★ is the "
    "goal. A move is right if it begins a shortest path.",
    _size,
    _draw,
)
