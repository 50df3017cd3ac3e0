"""Endgames: mate the lone king from a won position, drawn at random or from the fixed positions of evaluation."""

import operator
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any, ClassVar

import chess
import numpy as np

from lmrl.envs.chess.env import Chess, plain_fen, plain_san
from lmrl.envs.chess.guide import ACTION, PAGE, board_note, board_spelling
from lmrl.envs.chess.tokens import MEN_ON_SQUARES, clock_parts, men_parts, move_parts
from lmrl.envs.endgames.table import mate_plies
from lmrl.envs.task import ChatPrompt, Guide, TaskTokens
from lmrl.errors import UserError, unknown

__all__ = [
    "CHAT", "GUIDE", "PIECE_SETS", "Endgames", "choose_held_out", "draw_position", "held_out_positions",
    "parse_piece_sets", "position_of", "selection_positions", "tokens",
]  # fmt: skip

PIECE_SETS = ("kQK", "kRK", "kQRK", "kRRK")
"""Black's king and White's pieces."""


def parse_piece_sets(names: str) -> tuple[str, ...]:
    """Return the sets in a text such as ``"kQK kRK"``.

    Raises:
        UserError: for an unknown name, or none.
    """
    sets = tuple(names.split())
    if not sets:
        raise UserError(f"piece_sets must name at least one of {' '.join(PIECE_SETS)}, got {names!r}")
    for name in sets:
        if name not in PIECE_SETS:
            raise unknown("piece set", name, PIECE_SETS)
    return sets


def draw_position(chance: np.random.Generator, pieces: str) -> chess.Board:
    """Draw a uniformly random legal position of these pieces with White to move; White always has a move."""
    men = list(map(chess.Piece.from_symbol, pieces))
    # Rejection sampling: draw squares until the position is legal.
    while True:
        squares = chance.choice(64, len(men), replace=False)
        board = chess.Board(None)
        board.set_piece_map(dict(zip(map(int, squares), men, strict=True)))
        if board.is_valid():
            return board


_HARD = {"kQK": 15, "kRK": 15, "kQRK": 7, "kRRK": 9}  # plies to mate, at least
_HELD_OUT_SEED = 645


def choose_held_out(number: int) -> list[str]:
    """Compute the first ``number`` of the held-out positions, in FEN.

    The sets take turns. Positions are drawn until one is hard and no mirror image of another: by the exact tables the
    mate is at least 15 plies away in kQK and kRK, as the paper asks (appendix E.3). With two pieces none is as far (the
    longest are 11 and 13 plies): there it is at least 7 plies in kQRK and 9 in kRRK, as in a fifth of the positions.
    """
    chance = np.random.default_rng(_HELD_OUT_SEED)
    chosen: dict[str, str] = {}  # by the name that all mirror images share
    while len(chosen) < number:
        pieces = PIECE_SETS[len(chosen) % len(PIECE_SETS)]
        board = draw_position(chance, pieces)
        if (mate_plies(board) or 0) >= _HARD[pieces]:
            chosen.setdefault(_any_side_up(board), board.fen())
    return list(chosen.values())


@lru_cache(maxsize=1)
def held_out_positions() -> tuple[str, ...]:
    """Return the 645 positions of evaluation in FEN; `choose_held_out` computes the same."""
    return _read("positions.txt")


@lru_cache(maxsize=1)
def selection_positions() -> tuple[str, ...]:
    """Return 512 more, for choosing checkpoints and sampling settings: the next ones of `choose_held_out`."""
    return _read("selection.txt")


def position_of(option: str, index: Any) -> str:
    """Return the position, in FEN, that a reset option names.

    Args:
        option: ``test``, one of `held_out_positions`, or ``selection``, one of `selection_positions`.
        index: its index, from 0.

    Raises:
        UserError: if there is no such position.
    """
    positions = held_out_positions() if option == "test" else selection_positions()
    try:
        number = operator.index(index)
    except TypeError:
        number = -1
    if not 0 <= number < len(positions) or isinstance(index, bool):
        kind = "held-out" if option == "test" else "selection"
        raise UserError(f"{option} must be the index of a {kind} position, 0 to {len(positions) - 1}, got {index!r}")
    return positions[number]


def _read(name: str) -> tuple[str, ...]:
    return tuple((files("lmrl.envs.endgames") / name).read_text(encoding="utf-8").splitlines())


def _any_side_up(board: chess.Board) -> str:
    """Return a name that a position shares with its mirror images: the smallest of their FENs."""
    # Three mirrors generate all eight symmetries of the board.
    images = [board]
    for flip in (chess.flip_vertical, chess.flip_horizontal, chess.flip_diagonal):
        images += [image.transform(flip) for image in images]
    return min(image.board_fen() for image in images)


class Endgames(Chess):
    """Chess from positions in which Black has the king alone, and White queen, rook, or two of them.

    ``reset(options={"test": 7})`` begins at a position of the held-out set (0 to 644), ``{"selection": 7}`` at one of
    512 more for choosing checkpoints, ``{"fen": ...}`` at any legal one. Otherwise the seed draws a set and then
    squares, both uniformly, but no position of the held-out set. All else is as in `Chess`. Source: LMRL-Gym, section 4
    and appendix C.5.

    Args:
        piece_sets: one or more of ``kQK``, ``kRK``, ``kQRK``, ``kRRK``, with spaces between; episodes draw from them.
            Held-out positions are of all four.
        opponent: see `Chess`.
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
        # Draw this seed in any case, so that later draws do not depend on whether the position is random.
        chance = np.random.default_rng(int(self.np_random.integers(2**53)))
        named = [name for name in ("test", "selection", "fen") if name in options]
        if len(named) > 1:
            raise UserError(f"reset options {' and '.join(named)} both name a position: give one of them")
        if not named:
            fen = self._drawn(chance)
        elif named == ["fen"]:
            fen = options["fen"]
        else:
            fen = position_of(named[0], options[named[0]])
        return super()._start_board({"fen": fen})

    def _drawn(self, chance: np.random.Generator) -> str:
        pieces = self.piece_sets[int(chance.integers(len(self.piece_sets)))]
        while True:
            fen = draw_position(chance, pieces).fen()
            if fen not in held_out_positions():
                return fen


CHAT = ChatPrompt(
    "a chess grandmaster",
    """\
You play White in a chess endgame against a lone king. Each position is given in FEN. Your action is a legal move in
SAN, such as "Kd5", "Rh7+" or "Qb7#". Giving mate earns 1, a draw nothing, and any text that is no legal move costs 1
and leaves the board as it is. Mate in as few moves as you can; beware of stalemate.""",
    other="Position",
    last_texts=1,
    examples=3,
    example_turns=1,
    spelling=plain_fen,
    own_spelling=plain_san,
)


GUIDE = Guide(
    "You play White against a lone king and begin with a won position. Mate earns 1, a draw nothing; beware of "
    "stalemate. What is no legal move costs 1 and leaves the board as it is.",
    ACTION,
    ("Rc7+", "KR6/2R5/8/8/8/8/3k4/8 w - - 2 2"),
    spelling=board_spelling,
    note=board_note,
    page=PAGE,
)


def tokens(env: Mapping[str, Any]) -> TaskTokens:
    """Return the tokens of pieces on squares, numbers, and the parts of moves of the pieces on the board."""
    # No castling and no en passant: the rest of a position is always the same text.
    side = {"  w   -   -   ": ("side",)}
    return TaskTokens({**men_parts("kKQR"), **side, **clock_parts(), **move_parts("KQR")}, MEN_ON_SQUARES)
