"""Illegal moves that agents make on a chess board: the first try in each position, apart from those that repeat it.

An illegal move leaves the position as it is, so an agent that reads the position alone makes the same move again. A
share of all tries would therefore count a few positions many times. The benchmark needs played runs:
``lmrl reproduce chess endgames``. It reads those of every training seed that it finds.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import chess
import numpy as np

from benchmarks.row import Row
from lmrl.data.storage import read_episodes
from lmrl.envs.chess.env import plain_fen, plain_san
from lmrl.errors import UserError
from lmrl.evaluation.intervals import Interval, percentiles
from lmrl.types import Episode

__all__ = ["FirstTries", "first_tries", "kind", "run"]

RUNS = Path("runs")
TASKS = ("chess", "endgames")
KINDS = ("where the piece cannot go", "king into an attack", "to a square of an own piece", "leaves a check")
"""The kinds that are reported, as shares of all illegal first tries."""
STUCK = 10
"""An agent counts as stuck in a position after this number of illegal tries in a row."""


class FirstTries(NamedTuple):
    """The first tries of an agent in the positions of its games; one number per game."""

    turns: tuple[int, ...]
    """All tries."""
    tries: tuple[int, ...]
    illegal: tuple[int, ...]
    kinds: Counter[str]
    """The number of illegal first tries of each kind."""
    same: tuple[int, ...]
    """Illegal tries, repeated ones too; one number per position of any game."""

    @property
    def share(self) -> float:
        """The share of first tries that are illegal."""
        return sum(self.illegal) / sum(self.tries)

    def interval(self, resamples: int = 2_000) -> Interval:
        """Return the bootstrap interval of the share over games, since the tries of one game depend on each other."""
        games = np.random.default_rng(0).integers(len(self.tries), size=(resamples, len(self.tries)))
        return percentiles(np.asarray(self.illegal)[games].sum(1) / np.asarray(self.tries)[games].sum(1), 0.95)


def kind(board: chess.Board, said: str) -> str | None:
    """Return why a move in SAN is illegal on this board, or None if it is legal."""
    try:
        return None if board.parse_san(said) else "no move"  # a null move is false
    except chess.AmbiguousMoveError:
        return "two men could go there"
    except ValueError:
        pass
    move = chess.SAN_REGEX.match(said)
    if move is None:
        return "castles" if said.startswith("O-O") else "no move"
    to = chess.parse_square(move[4])
    if board.color_at(to) is board.turn:
        return "to a square of an own piece"
    piece = chess.PIECE_SYMBOLS.index(move[1].lower()) if move[1] else chess.PAWN
    rows = range(8) if not move[3] else [int(move[3]) - 1]
    files = move[2] or chess.FILE_NAMES
    ways = [
        way
        for way in board.pseudo_legal_moves
        if (way.to_square, board.piece_type_at(way.from_square)) == (to, piece)
        and chess.square_rank(way.from_square) in rows
        and chess.FILE_NAMES[chess.square_file(way.from_square)] in files
    ]
    if any(map(board.is_legal, ways)):
        return "spelled wrongly"
    if not ways:
        return "where the piece cannot go" if board.pieces(piece, board.turn) else "a piece that is not there"
    if piece == chess.KING:
        return "king into an attack"
    return "leaves a check" if board.is_check() else "opens a line to the king"


def first_tries(episodes: Sequence[Episode]) -> FirstTries:
    """Count the tries that follow a change of the position, and how many of them are illegal."""
    turns = []
    tries = []
    illegal = []
    kinds = Counter[str]()
    same = list[int]()
    for episode in episodes:
        read = zip(episode.observations, episode.actions, strict=False)
        positions = [(text, [action for _, action in there]) for text, there in groupby(read, key=itemgetter(0))]
        found = [kind(chess.Board(plain_fen(text)), plain_san(actions[0])) for text, actions in positions]
        wrong = [why for why in found if why is not None]
        turns.append(len(episode.actions))
        tries.append(len(positions))
        illegal.append(len(wrong))
        kinds.update(wrong)
        for (text, actions), why in zip(positions, found, strict=True):
            # A try that is followed by another in the same position was illegal; the last one may be legal.
            last = why if len(actions) == 1 else kind(chess.Board(plain_fen(text)), plain_san(actions[-1]))
            same.append(len(actions) - (last is None))
    return FirstTries(tuple(turns), tuple(tries), tuple(illegal), kinds, tuple(same))


def run() -> Iterator[Row]:
    """Rows for `python -m benchmarks illegal_moves`."""
    folders = [folder for task in TASKS for folder in (RUNS / task, *sorted(RUNS.glob(f"seed_*/{task}")))]
    there = [path for folder in folders for path in sorted(folder.glob("*/evaluation/episodes.parquet"))]
    if not there:
        raise UserError("illegal_moves needs played runs: lmrl reproduce chess endgames")
    for path in there:
        episodes = list(read_episodes(path))
        *_, above, task, player, _, _ = path.parts
        seed = f"{above.replace('_', ' ')}, " if above.startswith("seed_") else ""
        found = first_tries(episodes)
        name = f"{task}, {seed}{player}"
        low, high = found.interval()
        wrong = sum(found.illegal)
        shares = {f"illegal: {why}": found.kinds[why] / max(1, wrong) for why in KINDS}
        yield Row(
            f"{name}: first tries illegal",
            100 * found.share,
            unit="%",
            better="lower",
            shown=f"{found.share:.1%} [{low:.1%}, {high:.1%}] of {sum(found.tries):,}",
        )
        stuck = [count for count in found.same if count >= STUCK]
        yield Row(
            f"{name}: of all illegal tries, in positions with {STUCK} or more",
            100 * sum(stuck) / max(1, sum(found.same)),
            unit="%",
            shown=f"{sum(stuck) / max(1, sum(found.same)):.0%}, in {len(stuck) / len(found.same):.2%} of the positions",
        )
        for what, share in {**shares, "turns that repeat a position": 1 - sum(found.tries) / sum(found.turns)}.items():
            yield Row(f"{name}: {what}", 100 * share, unit="%")
        yield Row(f"{name}: median return", median(episode.total_reward for episode in episodes), digits=1)
