"""Endgames: mate the lone king from a won position."""

from collections.abc import Mapping
from typing import Any, ClassVar

import chess
import numpy as np

from lmrl.envs.chess_game import Chess
from lmrl.envs.endgame_held_out import held_out_positions, position_of
from lmrl.envs.endgame_positions import PIECE_SETS, draw_position, parse_piece_sets
from lmrl.errors import UserError

__all__ = ["Endgames"]


class Endgames(Chess):
    """Chess from positions in which Black has the king alone, and White queen, rook, or two of them.

    ``reset(options={"test": 7})`` begins at a position of the held-out set (0 to 644), ``{"selection": 7}`` at one of
    128 more, on which checkpoints are chosen, ``{"fen": ...}`` at any legal one; otherwise the seed draws a set and
    then squares, all alike, but no position of the held-out set. All else is as in `Chess`. Source: LMRL-Gym, section 4
    and appendix C.5.

    Args:
        piece_sets: the sets that are drawn from: one or more of ``kQK``, ``kRK``, ``kQRK``, ``kRRK``, with spaces
            between. Held-out positions are of all four.
        opponent: see `Chess`, as all others.
        depth: see `Chess`.
        nodes: see `Chess`.
        elo: see `Chess`.
        skill: see `Chess`.
        engine_path: see `Chess`.
        max_moves: see `Chess`.
        render_mode: see `TextEnv`.

    Raises:
        UserError: for an unknown piece set, and as `Chess`.
    """

    reset_options: ClassVar[tuple[str, ...]] = (*Chess.reset_options, "test", "selection")

    def __init__(
        self,
        piece_sets: str = " ".join(PIECE_SETS),
        opponent: str = "alphabeta",
        depth: int | None = None,
        nodes: int | None = None,
        elo: int | None = None,
        skill: int | None = None,
        engine_path: str | None = None,
        max_moves: int = 400,
        render_mode: str | None = "ansi",
    ) -> None:
        super().__init__(opponent, depth, nodes, elo, skill, engine_path, max_moves, render_mode)
        self.piece_sets = parse_piece_sets(piece_sets)

    def _start_board(self, options: Mapping[str, Any]) -> tuple[chess.Board, str]:
        # Drawn in any case, so that what is random afterwards does not depend on whether the position was.
        chance = np.random.default_rng(int(self.np_random.integers(2**53)))
        named = [name for name in ("test", "selection", "fen") if name in options]
        if len(named) > 1:
            raise UserError(f"reset options {' and '.join(named)} both name a position: give one of them")
        if "fen" in named:
            return super()._start_board(options)
        return super()._start_board({"fen": position_of(named[0], options[named[0]]) if named else self._drawn(chance)})

    def _drawn(self, chance: np.random.Generator) -> str:
        pieces = self.piece_sets[int(chance.integers(len(self.piece_sets)))]
        while True:
            fen = draw_position(chance, pieces).fen()
            if fen not in held_out_positions():
                return fen
