"""The tables against what is known about these endings, and against python-chess position by position."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import chess
import numpy as np
import pytest

from lmrl.envs.endgames.table import (
    BETWEEN,
    CORNER,
    HOME,
    ILLEGAL,
    LINES,
    NO_WIN,
    SYMMETRIES,
    Ints,
    best_move,
    cache_file,
    load_table,
    lone_kings,
    mate_plies,
    solve,
)
from lmrl.errors import UserError
from tests.helpers.cases import cases

SETS = ("Q", "R", "QR", "RR")
FARTHEST = "8/8/8/8/8/2k5/1R6/K7 w - - 0 1"


@pytest.fixture(scope="module")
def solved() -> dict[str, tuple[Ints, Ints]]:
    """All tables, worked out here whatever lies in a cache."""
    kings = {"": lone_kings()}
    tables = {men: solve(men, kings) for men in ("Q", "R")}
    smaller = {men: tables[men][0] for men in tables}
    return tables | {men: solve(men, smaller) for men in ("QR", "RR")}


def board_of(men: str, squares: list[int], white: bool = True) -> chess.Board:
    board = chess.Board(None)
    for square, symbol in zip(squares, f"kK{men}", strict=True):
        board.set_piece_at(square, chess.Piece.from_symbol(symbol))
    board.turn = white
    return board


def on_the_whole_board(found: np.ndarray) -> int:
    """How many positions of the whole board those of the corner stand for."""
    orbits = [len(set(SYMMETRIES[:, square].tolist())) for square in CORNER]
    return sum(orbit * int(part.sum()) for orbit, part in zip(orbits, found, strict=True))


def test_geometry() -> None:
    a1 = 0
    b2 = 9
    c3 = 18
    d4 = 27
    a4 = 24
    h1 = 7
    assert np.flatnonzero(BETWEEN[a1, d4]).tolist() == [b2, c3]
    assert np.flatnonzero(BETWEEN[h1, a1]).tolist() == [1, 2, 3, 4, 5, 6]
    assert not BETWEEN[a1, b2].any()
    assert (LINES["R"][a1, a4], LINES["R"][a1, d4], LINES["Q"][a1, d4], LINES["Q"][a4, h1]) == (
        True,
        False,
        True,
        False,
    )
    assert len({tuple(image) for image in SYMMETRIES.tolist()}) == 8
    assert {HOME[square][1] for square in (0, 7, 56, 63)} == {0}
    assert all(SYMMETRIES[symmetry][square] == CORNER[place] for square, (symmetry, place) in enumerate(HOME))


@pytest.mark.parametrize(("men", "moves"), [("Q", 10), ("R", 16), ("QR", 6), ("RR", 7)])
def test_the_longest_win_is_the_known_one_and_every_position_is_won(
    solved: dict[str, tuple[Ints, Ints]], men: str, moves: int
) -> None:
    white, _ = solved[men]
    assert white.max() == 2 * moves - 1
    assert set(np.unique(white)) == {ILLEGAL, *range(1, 2 * moves, 2)}  # with White to move always an odd number


@pytest.mark.parametrize(("men", "to_move", "mates"), [("Q", 144_508, 364), ("R", 175_168, 216)])
def test_known_numbers_of_positions(solved: dict[str, tuple[Ints, Ints]], men: str, to_move: int, mates: int) -> None:
    white, black = solved[men]
    assert on_the_whole_board(white != ILLEGAL) == to_move
    assert on_the_whole_board(black != ILLEGAL) == 223_944
    assert on_the_whole_board(black == 0) == mates


@pytest.mark.parametrize("men", ["Q", "R"])
def test_every_mate_and_every_stalemate_agrees_with_python_chess(
    solved: dict[str, tuple[Ints, Ints]], men: str
) -> None:
    _, black = solved[men]
    rng = random.Random(men)
    stalemates = 0
    for place, king in enumerate(CORNER):
        for own in range(64):
            for man in range(64) if rng.random() < 0.4 else ():
                value = black[place, own, man]
                if value != ILLEGAL:
                    board = board_of(men, [king, own, man], white=False)
                    assert board.is_checkmate() == (value == 0)
                    if board.is_stalemate():
                        stalemates += 1
                        assert value == NO_WIN
    assert stalemates > 3


@pytest.mark.parametrize("men", SETS)
def test_a_value_follows_from_those_after_the_moves(solved: dict[str, tuple[Ints, Ints]], men: str) -> None:
    assert all(np.array_equal(*pair) for pair in zip(load_table(men), solved[men], strict=True))
    rng = random.Random(men)
    tried = Counter[bool]()
    while tried.total() < 250:
        board = board_of(men, rng.sample(range(64), 2 + len(men)), white=rng.random() < 0.4)
        if board.is_valid():
            plies = mate_plies(board)
            assert plies == worked_out(board), board.fen()
            tried[board.turn] += 1
            if not board.is_game_over():
                board.push(best_move(board))
                assert mate_plies(board) == (None if plies is None else plies - 1), board.fen()
    assert min(tried.values()) > 30


def worked_out(board: chess.Board) -> int | None:
    """The value of a position by one look at the rules and the values behind each move."""
    after = []
    for move in board.legal_moves:
        board.push(move)
        after.append(mate_plies(board))
        board.pop()
    if not after:
        return 0 if board.is_check() else None
    won = [plies for plies in after if plies is not None]
    if board.turn == chess.WHITE:
        return 1 + min(won) if won else None
    return 1 + max(won) if len(won) == len(after) else None


@cases(
    ("fen", "plies"),
    [
        ("7k/5K2/8/8/8/8/8/6Q1 w - - 0 1", 1),  # Qg7, Qh1 or Qh2
        ("7k/5KQ1/8/8/8/8/8/8 b - - 1 1", 0),
        ("7k/8/6Q1/8/8/8/8/K7 b - - 0 1", None),  # stalemate
        ("8/8/8/8/8/8/1k6/R5K1 b - - 0 1", None),  # the rook is lost
        ("k7/8/1K6/8/8/8/8/7R w - - 0 1", 1),
        ("1k6/8/1K6/8/8/8/8/7R b - - 0 1", 4),  # Kc8, Rd1, Kb8, Rd8; after Ka8 it is mate at once
        ("8/8/8/8/8/2k5/8/K7 w - - 0 1", None),  # bare kings
    ],
)
def test_values_that_can_be_seen(fen: str, plies: int | None) -> None:
    assert mate_plies(chess.Board(fen)) == plies


def test_best_play_from_the_longest_win_takes_all_its_moves() -> None:
    board = chess.Board(FARTHEST)
    for left in range(31, 0, -1):
        assert mate_plies(board) == left
        board.push(best_move(board))
    assert board.is_checkmate() and board.fullmove_number == 16


def test_the_lone_king_takes_what_it_can() -> None:
    assert best_move(chess.Board("8/8/8/8/8/8/1k6/R5K1 b - - 0 1")).uci() == "b2a1"
    # Both rooks are loose; without the one on c2 mate is 19 plies away, without the one on a1 only 13.
    board = chess.Board("8/8/8/8/8/8/1kR5/R5K1 b - - 0 1")
    assert (mate_plies(board), best_move(board).uci()) == (20, "b2c2")


@pytest.mark.parametrize(
    "fen", ["8/8/8/8/8/2k5/1P6/K7 w - - 0 1", "8/8/8/8/8/2k4r/8/K7 w - - 0 1", "8/8/8/8/8/8/8/8 w - - 0 1"]
)
def test_other_pieces_are_refused(fen: str) -> None:
    with pytest.raises(UserError, match=r"a lone black king against a king with Q, R, QR or RR, got"):
        mate_plies(chess.Board(fen))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    load_table.cache_clear()
    yield tmp_path / "lmrl" / "endgame-kQK-v1.npz"
    load_table.cache_clear()


def test_a_table_is_kept_and_read_again(cache: Path) -> None:
    first = load_table("Q")
    assert cache_file("Q") == cache and [path.name for path in cache.parent.iterdir()] == [cache.name]
    marked = first[0].copy()
    marked[0, 0, 0] = 99  # to see where it comes from
    np.savez_compressed(cache, white=marked, black=first[1])
    assert load_table("Q") is first
    load_table.cache_clear()
    assert load_table("Q")[0][0, 0, 0] == 99
    with pytest.raises(ValueError, match="read-only"):
        load_table("Q")[0][0, 0, 0] = 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "garbage", "empty", "shape", "names"])
def test_a_damaged_file_is_worked_out_again(cache: Path, solved: dict[str, tuple[Ints, Ints]], damage: str) -> None:
    load_table("Q")
    right = cache.read_bytes()
    if damage == "shape":
        np.savez_compressed(cache, white=solved["Q"][0][:5], black=solved["Q"][1])
    elif damage == "names":
        np.savez_compressed(cache, white=solved["Q"][0])
    else:
        middle = len(right) // 2
        flipped = right[:middle] + bytes([right[middle] ^ 1]) + right[middle + 1 :]
        cache.write_bytes({"cut": right[:-500], "flipped": flipped, "garbage": b"PK" * 90, "empty": b""}[damage])
    load_table.cache_clear()
    assert all(np.array_equal(*pair) for pair in zip(load_table("Q"), solved["Q"], strict=True))
    load_table.cache_clear()
    assert np.array_equal(np.load(cache)["white"], solved["Q"][0])


def test_without_a_place_to_keep_it_a_table_is_only_worked_out(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solved: dict[str, tuple[Ints, Ints]]
) -> None:
    (tmp_path / "lmrl").write_text("a file where the folder should be")
    assert np.array_equal(load_table("Q")[0], solved["Q"][0])
    load_table.cache_clear()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", staticmethod(homeless))
    assert cache_file("Q") is None
    assert np.array_equal(load_table("Q")[0], solved["Q"][0])


def homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")
