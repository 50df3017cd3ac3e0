"""Kinds of illegal moves, and first tries apart from those that repeat them."""

from pathlib import Path

import chess
import pytest

from benchmarks import illegal_moves
from benchmarks.illegal_moves import first_tries, kind
from lmrl.data.storage import write_episodes
from lmrl.envs import registry
from lmrl.envs.chess.env import spaced_san
from lmrl.errors import UserError
from lmrl.types import Episode
from tests.helpers.cases import cases

CHECK = "4k3/8/8/8/7b/8/3N4/4K3 w - - 0 1"
PIN = "4r2k/8/8/8/8/8/4R3/R3K3 w Q - 0 1"
KNIGHTS = "4k3/8/8/8/8/8/3N3N/K7 w - - 0 1"


@cases(
    ("fen", "said", "why"),
    [
        (chess.STARTING_FEN, "e4", None),
        (chess.STARTING_FEN, "e5", "where the piece cannot go"),
        (chess.STARTING_FEN, "Nd2", "to an own man's square"),
        (chess.STARTING_FEN, "O-O", "castles"),
        (chess.STARTING_FEN, "e9", "no move"),
        (chess.STARTING_FEN, "--", "no move"),
        (chess.STARTING_FEN, "", "no move"),
        (CHECK, "Kd1", None),
        (CHECK, "Ne4", "leaves a check"),
        (CHECK, "Kf2", "king into an attack"),
        (CHECK, "Qf2", "a piece that is not there"),
        (PIN, "Rd2", "opens a line to the king"),
        (PIN, "Re4", None),
        (PIN, "Red1", "where the piece cannot go"),
        (KNIGHTS, "Nf3", "two men could go there"),
        (KNIGHTS, "Nhf3", None),
        ("7k/P7/8/8/8/8/8/K7 w - - 0 1", "a8", "spelled wrongly"),
    ],
)
def test_why_a_move_is_illegal(fen: str, said: str, why: str | None) -> None:
    assert kind(chess.Board(fen), said) == why


def _game(*moves: str) -> Episode:
    env, actions = registry.make("chess", opponent="random"), tuple(spaced_san(move) for move in moves)
    observations, rewards = [env.reset(seed=0)[0]], []
    for action in actions:
        text, reward, *_ = env.step(action)
        observations.append(text)
        rewards.append(float(reward))
    return Episode("chess", tuple(observations), actions, tuple(rewards), terminated=False, truncated=True)


def test_an_illegal_move_that_is_said_again_counts_once() -> None:
    found = first_tries([_game("e5", "e5", "e5", "e4", "Ke3"), _game("d4")])
    assert (found.turns, found.tries, found.illegal) == ((5, 1), (2, 1), (2, 0))
    assert found.kinds == {"where the piece cannot go": 2} and found.share == 2 / 3
    assert found.same == (3, 1, 0)
    low, high = found.interval()
    assert (low, high) == (0.0, 1.0)


def test_rows_of_the_runs_that_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(illegal_moves, "RUNS", tmp_path)
    with pytest.raises(UserError, match="lmrl reproduce chess endgames"):
        next(illegal_moves.run())
    games = {"chess": _game("e5", "e5", "e4"), "seed_1/chess": _game(*["e5"] * 10, "e4", "Ke3")}
    for folder, game in games.items():
        (tmp_path / folder / "bc" / "evaluation").mkdir(parents=True)
        write_episodes(tmp_path / folder / "bc" / "evaluation" / "episodes.parquet", [game])
    rows = [str(row) for row in illegal_moves.run()]
    assert rows[:8] == [
        "chess, bc: first tries illegal | 100.0% [100.0%, 100.0%] of 1 | ",
        "chess, bc: of all illegal tries, in positions with 10 or more | 0%, in 0.00% of the positions | ",
        "chess, bc: illegal: where the piece cannot go | 100% | ",
        "chess, bc: illegal: king into an attack | 0% | ",
        "chess, bc: illegal: to an own man's square | 0% | ",
        "chess, bc: illegal: leaves a check | 0% | ",
        "chess, bc: turns that repeat a position | 67% | ",
        "chess, bc: median return | -2.0 | ",
    ]
    stuck = "chess, seed 1, bc: of all illegal tries, in positions with 10 or more | 91%, in 50.00% of the positions | "
    assert len(rows) == 16 and rows[9] == stuck
