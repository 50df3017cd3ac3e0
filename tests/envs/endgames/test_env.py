import random
from collections import Counter
from importlib.resources import files

import chess
import pytest

import lmrl
from lmrl.envs.checker import check_env
from lmrl.envs.chess.env import plain_fen
from lmrl.envs.endgames.env import PIECE_SETS, Endgames, choose_held_out, held_out_positions, selection_positions
from lmrl.envs.endgames.table import best_move, mate_plies
from lmrl.envs.registry import make_policy
from lmrl.errors import UserError
from lmrl.evaluation.evaluate import evaluate
from lmrl.rollout import in_order, rollout
from lmrl.types import Start
from tests.helpers.cases import cases

FARTHEST = "8/8/8/8/8/2k5/1R6/K7 w - - 0 1"  # 16 moves from mate, as far as it gets with a rook


def pieces(fen: str) -> str:
    """The pieces on the board, as the sets are named."""
    found = "".join(mark for mark in fen.split()[0] if mark.isalpha())
    return "k" + "".join(sorted(found.replace("k", "").replace("K", ""))) + "K"


def positions(env: Endgames, number: int) -> list[str]:
    return [plain_fen(env.reset(seed=seed)[0]) for seed in range(number)]


def test_positions_are_legal_won_and_of_all_sets_alike() -> None:
    fens = positions(Endgames(), 400)
    for fen in fens:
        board = chess.Board(fen)
        assert board.is_valid() and board.turn == chess.WHITE and not board.is_check() and not board.is_game_over()
        assert fen.endswith(" w - - 0 1")
        assert mate_plies(board) is not None
    assert len(set(fens)) == 400
    counts = Counter(map(pieces, fens))
    assert set(counts) == set(PIECE_SETS)
    assert all(75 <= count <= 125 for count in counts.values())  # 100 expected, deviation 8.7
    assert not set(fens) & set(held_out_positions())


def test_squares_are_drawn_alike() -> None:
    kings = Counter(chess.Board(fen).king(chess.WHITE) for fen in positions(Endgames("kRK"), 1_280))
    assert len(kings) == 64
    assert max(kings.values()) <= 42  # 20 expected


def test_positions_follow_from_the_seed() -> None:
    assert positions(Endgames(), 20) == positions(Endgames(opponent="random"), 20)
    assert {pieces(fen) for fen in positions(Endgames("kRRK"), 20)} == {"kRRK"}
    assert {pieces(fen) for fen in positions(Endgames(piece_sets=" kQK   kQRK"), 40)} == {"kQK", "kQRK"}


def test_a_drawn_position_is_not_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    first = positions(Endgames("kQK"), 1)
    monkeypatch.setattr("lmrl.envs.endgames.env.held_out_positions", lambda: tuple(first))
    assert positions(Endgames("kQK"), 1) != first


def test_the_held_out_sets_are_what_their_recipe_gives() -> None:
    assert [*held_out_positions(), *selection_positions()] == choose_held_out(645 + 512)
    text = (files("lmrl.envs.endgames") / "positions.txt").read_text(encoding="utf-8")
    assert text.count("\n") == 645 and text.endswith("0 1\n")


def test_the_held_out_positions_are_hard_and_all_different() -> None:
    boards = [chess.Board(fen) for fen in held_out_positions()]
    least: dict[str, int] = {}
    for index, board in enumerate(boards):
        name = pieces(board.fen())
        assert name == PIECE_SETS[index % 4] and board.is_valid() and board.turn == chess.WHITE
        least[name] = min(least.get(name, 99), mate_plies(board) or 0)
    assert least == {"kQK": 15, "kRK": 15, "kQRK": 7, "kRRK": 9}
    assert Counter(pieces(fen) for fen in held_out_positions()) == {"kQK": 162, "kRK": 161, "kQRK": 161, "kRRK": 161}
    names = {frozenset(mirrored(board)) for board in boards}
    assert len(names) == 645


def test_checkpoints_are_chosen_on_positions_that_are_not_reported() -> None:
    """Nor on mirror images of them; and they are as hard."""
    reported, chosen = ([chess.Board(fen) for fen in fens] for fens in (held_out_positions(), selection_positions()))
    names, others = ({frozenset(mirrored(board)) for board in boards} for boards in (reported, chosen))
    assert (len(names), len(others), len(names | others)) == (645, 512, 1_157)
    assert Counter(pieces(board.fen()) for board in chosen) == dict.fromkeys(PIECE_SETS, 128)
    played = {
        selection: [
            e.info["task_id"]
            for e in evaluate(
                make_policy("endgames", "random"), "endgames", 130, selection=selection, env={"max_moves": 1}
            ).episodes
        ]
        for selection in (False, True)
    }
    assert played[False] == list(held_out_positions()[:130])
    assert played[True] == list(selection_positions()[:130])


def mirrored(board: chess.Board) -> list[str]:
    """The position in all eight directions."""
    found = [board]
    for flip in (chess.flip_vertical, chess.flip_horizontal, chess.flip_diagonal):
        found += [each.transform(flip) for each in found]
    return [each.board_fen() for each in found]


def test_evaluation_plays_the_held_out_positions_in_order() -> None:
    starts = lmrl.task("endgames").starts
    assert [start["test"] for start in starts] == list(range(len(held_out_positions())))
    env = Endgames(piece_sets="kQK")  # whatever is drawn
    for index in (0, 1, 644):
        text, info = env.reset(seed=9, options={"test": index})
        assert plain_fen(text) == info["task_id"] == info["start"]["fen"] == held_out_positions()[index]


@pytest.mark.parametrize("options", [{}, {"fen": "8/8/8/2k5/8/8/8/K2QR3 w - - 0 1"}, {"test": 3}])
def test_a_game_replays_from_its_recorded_start(options: dict[str, object]) -> None:
    lengths = []
    for seed in range(4):
        env = Endgames()
        game = play_at_random(env, seed, options)
        start = env.reset(seed=seed, options=options)[1]["start"]
        assert play_at_random(Endgames(), seed, start) == game
        lengths.append(len(game))
    assert max(lengths) > 8


def play_at_random(env: Endgames, seed: int, options: dict[str, object]) -> list[str]:
    texts = [env.reset(seed=seed, options=options)[0]]
    chance = random.Random(seed)
    over = False
    while not over and len(texts) < 30:
        text, _, terminated, truncated, _ = env.step(chance.choice(env.legal_actions()))
        texts.append(text)
        over = terminated or truncated
    return texts


def test_the_optimal_player_needs_16_moves_against_the_best_defence() -> None:
    board = chess.Board(FARTHEST)
    replies = []
    while not board.is_game_over():
        move = best_move(board)
        replies += [move.uci()] if board.turn == chess.BLACK else []
        board.push(move)
    start = Start(0, {"fen": FARTHEST, "replies": replies})
    [episode] = in_order(rollout(make_policy("endgames", "optimal"), Endgames, [start], task="endgames"))
    assert (len(episode), episode.rewards, episode.terminated) == (16, (0.0,) * 15 + (1.0,), True)
    assert plain_fen(episode.observations[-1]).split()[0] == board.board_fen()


def test_the_optimal_player_wins_held_out_games_in_time() -> None:
    starts = [Start(index, {"test": index}) for index in range(40)]
    episodes = in_order(rollout(make_policy("endgames", "optimal"), Endgames, starts, task="endgames"))
    for index, episode in enumerate(episodes):
        assert episode.success and episode.total_reward == 1
        assert len(episode) <= ((mate_plies(chess.Board(held_out_positions()[index])) or 0) + 1) // 2


def test_laws() -> None:
    assert check_env(lambda: lmrl.make("endgames"), texts=60)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ("", "piece_sets must name at least one of kQK kRK kQRK kRRK, got ''"),
        ("kPK", "unknown piece set 'kPK'; known: kQK, kQRK, kRK, kRRK"),
        ("kQK,kRK", "unknown piece set 'kQK,kRK'"),
        ("KQk", "unknown piece set 'KQk'"),
    ],
)
def test_wrong_piece_sets(sets: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Endgames(sets)


@cases(
    ("options", "message"),
    [
        ({"test": 645}, "test must be the index of a held-out position, 0 to 644, got 645"),
        ({"test": -1}, "0 to 644, got -1"),
        ({"test": "3"}, "0 to 644, got '3'"),
        ({"test": True}, "0 to 644, got True"),
        ({"test": 1.0}, "0 to 644, got 1.0"),
        ({"test": 0, "fen": FARTHEST}, "test and fen both name a position"),
        ({"test": 0, "selection": 0}, "test and selection both name a position"),
        ({"selection": 512}, "selection must be the index of a selection position, 0 to 511, got 512"),
        ({"fen": "no position"}, "fen must be a position in FEN, got 'no position'"),
        ({"fen": FARTHEST.replace(" w ", " b ")}, "fen must be a legal position with White to move"),
        ({"fen": "8/8/8/8/8/8/1k6/K7 w - - 0 1"}, "fen must be a legal position with White to move"),
        ({"position": 3}, "unknown reset option 'position'; known: fen, replies, selection, test"),
    ],
)
def test_wrong_reset_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Endgames().reset(seed=0, options=options)
