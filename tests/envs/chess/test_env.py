from random import Random

import chess
import pytest

import lmrl
from lmrl.envs.chess.env import Chess, plain_fen, plain_san, spaced_fen, spaced_san
from lmrl.envs.chess.opponents import best_move, evaluation
from lmrl.errors import UserError
from tests.helpers.cases import cases

START = (
    "r n b q k b n r / p p p p p p p p / 8 / 8 / 8 / 8 / P P P P P P P P / R N B Q K B N R   w   K Q k q   -   0   1\n"
)


def play(
    fen: str | None, *moves: str, replies: tuple[str, ...] = (), **settings: object
) -> list[tuple[float, bool, bool]]:
    env = Chess(**settings)
    options: dict[str, object] = {} if fen is None else {"fen": fen}
    env.reset(seed=0, options={**options, "replies": list(replies)} if replies else options)
    return [env.step(spaced_san(move))[1:4] for move in moves]


def test_a_mate_by_white() -> None:
    scholar = play(None, "e4", "Bc4", "Qh5", "Qxf7#", replies=("e7e5", "b8c6", "g8f6"))
    assert scholar == [(0.0, False, False)] * 3 + [(1.0, True, False)]


def test_a_mate_by_black() -> None:
    assert play(None, "f3", "g4", replies=("e7e5", "d8h4")) == [(0.0, False, False), (-1.0, True, False)]


@pytest.mark.parametrize(
    ("fen", "move", "replies"),
    [
        ("k7/8/1K6/8/8/8/8/2Q5 w - - 0 1", "Qc7", ()),  # stalemate by White
        ("8/8/8/8/8/3k4/1r6/K7 w - - 0 1", "Kxb2", ()),  # only kings are left
        ("7k/8/8/8/8/8/6q1/K7 w - - 0 1", "Kb1", ("g2c2",)),  # no stalemate: White has Ka1
        ("4k3/8/8/8/8/8/R7/4K3 w - - 149 100", "Ra3", ()),  # 75 moves without a capture or a pawn
    ],
)
def test_other_ends_are_worth_nothing(fen: str, move: str, replies: tuple[str, ...]) -> None:
    (answer,) = play(fen, move, replies=replies, opponent="random")
    board = chess.Board(fen)
    board.push_san(move)
    ended = board.is_stalemate() or board.is_insufficient_material() or board.is_seventyfive_moves()
    assert answer == (0.0, ended, False)


def test_stalemate_by_black_ends_it_too() -> None:
    assert play("7k/8/8/8/8/6q1/8/1K6 w - - 0 1", "Ka1", replies=("g3b3",)) == [(0.0, True, False)]


def test_fivefold_repetition_ends_and_threefold_does_not() -> None:
    there_and_back = ["Nf3", "Ng1"] * 4
    replies = ("g8f6", "f6g8") * 4
    found = play(None, *there_and_back, replies=replies)
    assert found[:-1] == [(0.0, False, False)] * 7 and found[-1] == (0.0, True, False)


@cases("text", ["e 5\n", "", "e9", "--", "Z0", "0000", "N f 6\n", "\x00", "e 4 e 5", "♘f3", "a" * 100_000])
def test_what_is_no_legal_move(text: str) -> None:
    env = lmrl.make("chess")
    first, _ = env.reset(seed=0)
    said, reward, done, cut, info = env.step(text)
    assert (said, reward, done, cut, info["illegal"], info["reply"]) == (first, -1.0, False, False, True, "")


@pytest.mark.parametrize("text", ["N f 3\n", "Nf3", " N g 1 f 3 ", "Nf3+", "Ng1-f3"])
def test_other_spellings_of_a_legal_move(text: str) -> None:
    env = lmrl.make("chess")
    env.reset(seed=0)
    assert env.step(text)[4]["illegal"] is False


def test_castling_promotion_and_en_passant_as_they_are_written() -> None:
    assert play("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "O-O", opponent="random")[0][0] == 0.0
    assert play("7k/4P3/6K1/8/8/8/8/8 w - - 0 1", "e8=Q#", opponent="random") == [(1.0, True, False)]
    assert play("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1", "exd6", opponent="random")[0][0] == 0.0


def test_the_clock_truncates_the_action_after_the_last() -> None:
    env = Chess(max_moves=3)
    assert env.return_range == (-4.0, 1.0)
    env.reset(seed=0)
    assert [env.step("zz")[1:4] for _ in range(4)] == [(-1.0, False, False)] * 3 + [(-1.0, False, True)]
    assert lmrl.make("chess").return_range == (-401.0, 1.0)


def test_info_tells_position_reply_and_opponent() -> None:
    env = Chess(opponent="random")
    text, info = env.reset(seed=0)
    assert (info["fen"], info["reply"], info["opponent"]) == (chess.STARTING_FEN, "", {"name": "random"})
    text, _, _, _, info = env.step("e 4\n")
    assert plain_fen(text) == info["fen"]
    board = chess.Board()
    board.push_san("e4")
    board.push_uci(info["reply"])
    assert board.fen() == info["fen"]


@pytest.mark.parametrize("opponent", ["random", "alphabeta"])
def test_games_follow_from_the_seed(opponent: str) -> None:
    def game(seed: int) -> list[str]:
        env = Chess(opponent=opponent)
        texts = [env.reset(seed=seed)[0]]
        chance = Random(1)
        for _ in range(12):
            texts.append(env.step(chance.choice(env.legal_actions()))[0])
        return texts

    assert game(1) == game(1)
    assert len({tuple(game(seed)) for seed in range(4)}) == 4


def test_replies_are_played_as_far_as_they_are_legal() -> None:
    env = Chess(opponent="random")
    _, info = env.reset(seed=0, options={"replies": ["e7e5", "e7e5", "d7d5"]})
    start = info["start"]
    assert env.step("e 4")[4]["reply"] == "e7e5"
    env.step("d 4")  # e7e5 again is none: from here on the opponent plays for itself
    assert start == {"fen": chess.STARTING_FEN, "replies": ["e7e5", "e7e5", "d7d5"]}


def test_the_search_mates_takes_and_defends() -> None:
    back_rank = chess.Board("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1")
    assert all(back_rank.san(best_move(back_rank, depth, Random(0))) == "Ra8#" for depth in (1, 2))
    hanging = chess.Board("4k3/8/8/3q4/4P3/8/8/4K3 w - - 0 1")
    assert hanging.san(best_move(hanging, 1, Random(0))) == "exd5"
    guarded = chess.Board("4k3/8/4p3/3p4/8/8/8/3QK3 w - - 0 1")  # the pawn is guarded: seen by looking one ply farther
    assert guarded.san(best_move(guarded, 2, Random(0))) != "Qxd5"
    before = guarded.fen()
    best_move(guarded, 2, Random(0))
    assert guarded.fen() == before


def test_the_search_finds_a_mate_in_two() -> None:
    board = chess.Board("7k/8/5K2/8/8/8/8/6R1 w - - 0 1")  # Kf7 Kh7 Rh1#
    assert board.san(best_move(board, 3, Random(0))) == "Kf7"


def test_the_evaluation_by_hand() -> None:
    assert evaluation(chess.Board()) == 0
    board = chess.Board("4k3/p7/8/8/8/8/8/Q3K3 w - - 0 1")
    assert evaluation(board) == 800
    board.turn = chess.BLACK
    assert evaluation(board) == -800


@pytest.mark.parametrize(
    ("fen", "words"),
    [
        ("nonsense", "fen must be a position in FEN, got 'nonsense'"),
        (7, "fen must be a position in FEN, got 7"),
        ("8/8/8/8/8/8/8/8 w - - 0 1", "a legal position with White to move"),
        ("8/8/8/8/3k4/8/8/4K2Q b - - 0 1", "a legal position with White to move"),
        ("8/8/8/8/8/3k4/8/3K4 w - - 0 1", "and the game not over"),
    ],
)
def test_positions_that_are_none(fen: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Chess().reset(options={"fen": fen})


@pytest.mark.parametrize("replies", [5, "e7e5", [None], ["0000"], ["e7e5", "zz"]])
def test_replies_that_are_no_moves(replies: object) -> None:
    with pytest.raises(UserError, match=r"replies must be a list of Black's moves in UCI such as \['e7e5'"):
        Chess(opponent="random").reset(options={"replies": replies})


def test_an_instance_has_one_name_however_it_was_begun() -> None:
    env = Chess()
    _, first = env.reset(seed=0)
    assert env.reset(seed=0, options=first["start"])[1]["task_id"] == first["task_id"] == chess.STARTING_FEN


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"opponent": "kasparov"}, "unknown chess opponent 'kasparov'; known: alphabeta, random, stockfish"),
        ({"opponent": "random", "depth": 2}, "opponent 'random' has no setting 'depth'; its settings: none"),
        ({"opponent": "alphabeta", "nodes": 5}, "opponent 'alphabeta' has no setting 'nodes'; its settings: depth"),
        ({"opponent": "alphabeta", "depth": 0}, "depth of the opponent must be a whole number from 1, got 0"),
        ({"max_moves": 0}, "max_moves must be at least 1, got 0"),
    ],
)
def test_wrong_arguments(settings: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Chess(**settings)


def test_the_first_position_in_text_is_as_published() -> None:
    assert spaced_fen(chess.STARTING_FEN) == START
    assert plain_fen(START) == plain_fen(START[:-1]) == chess.STARTING_FEN


@pytest.mark.parametrize(
    ("san", "text"), [("Nf3", "N f 3\n"), ("O-O", "O - O\n"), ("exd5", "e x d 5\n"), ("e8=Q#", "e 8 = Q #\n")]
)
def test_moves_in_text(san: str, text: str) -> None:
    assert spaced_san(san) == text
    assert plain_san(text) == plain_san(f"  {text[:-1]}") == plain_san(san) == san
