"""The fixed positions that evaluation plays and training never begins at: hard ones of all four sets."""

import operator
from functools import lru_cache
from importlib.resources import files
from typing import Any

import chess
import numpy as np

from lmrl.envs.endgame_positions import PIECE_SETS, draw_position
from lmrl.envs.endgame_table import mate_plies
from lmrl.errors import UserError

__all__ = ["choose_held_out", "held_out_positions", "position_of", "selection_positions"]

_HARD = {"kQK": 15, "kRK": 15, "kQRK": 7, "kRRK": 9}  # plies to mate, at least
_CHOICE = 645  # seed


def choose_held_out(number: int) -> list[str]:
    """The first ``number`` of the held-out positions, in FEN, worked out anew.

    The sets take turns. Positions are drawn until one is hard and no mirror image of another: by the exact tables the
    mate is at least 15 plies away in kQK and kRK, as the paper asks (appendix E.3). With two men none is as far (the
    longest are 11 and 13 plies): there it is at least 7 plies in kQRK and 9 in kRRK, as in a fifth of the positions.
    """
    chance = np.random.default_rng(_CHOICE)
    chosen: dict[str, str] = {}  # by the name that all mirror images share
    while len(chosen) < number:
        pieces = PIECE_SETS[len(chosen) % len(PIECE_SETS)]
        board = draw_position(chance, pieces)
        if (mate_plies(board) or 0) >= _HARD[pieces]:
            chosen.setdefault(_any_side_up(board), board.fen())
    return list(chosen.values())


@lru_cache(maxsize=1)
def held_out_positions() -> tuple[str, ...]:
    """The 645 positions of evaluation in FEN; `choose_held_out` gives the same."""
    return _read("endgames.txt")


@lru_cache(maxsize=1)
def selection_positions() -> tuple[str, ...]:
    """128 more, on which checkpoints are chosen in training: the next ones of `choose_held_out`."""
    return _read("endgames_selection.txt")


def position_of(option: str, index: Any) -> str:
    """The position of a reset option and an index from 0.

    Args:
        option: ``test``: of `held_out_positions`; ``selection``: of `selection_positions`.
        index: its number.

    Raises:
        UserError: if there is none.
    """
    positions = held_out_positions() if option == "test" else selection_positions()
    try:
        number = operator.index(index)
    except TypeError:
        number = -1
    if not 0 <= number < len(positions) or isinstance(index, bool):
        raise UserError(f"{option} must be the index of a held-out position, 0 to {len(positions) - 1}, got {index!r}")
    return positions[number]


def _read(name: str) -> tuple[str, ...]:
    return tuple((files("lmrl") / "assets" / name).read_text(encoding="utf-8").splitlines())


def _any_side_up(board: chess.Board) -> str:
    """A name that a position shares with its mirror images."""
    boards = [board]
    for flip in (chess.flip_vertical, chess.flip_horizontal, chess.flip_diagonal):
        boards += [image.transform(flip) for image in boards]
    return min(image.board_fen() for image in boards)
