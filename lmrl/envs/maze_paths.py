"""The cells that an episode of a maze went through, also where its texts do not tell them."""

import re
from collections.abc import Mapping
from typing import Any

from lmrl.envs.layouts import MOVES, Cell, Layout
from lmrl.episode import Episode

__all__ = ["walked"]

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
