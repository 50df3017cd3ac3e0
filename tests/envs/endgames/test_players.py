from functools import lru_cache

import chess
import pytest

import lmrl
from lmrl.envs.chess.env import plain_fen, plain_san
from lmrl.envs.endgames.table import mate_plies
from lmrl.envs.registry import make_policy, policy_names, recording
from lmrl.envs.task import recording_seed
from lmrl.errors import UserError
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Request, Start


@lru_cache
def record(count: int, slots: int = 32) -> list[Episode]:
    recipe = recording("endgames")
    starts = (recipe.start(0, index) for index in range(count))
    make = lambda: lmrl.make("endgames")  # noqa: E731
    return in_order(rollout(recipe.policy, make, starts, task="endgames", slots=slots, stop=recipe.stop))


def moves(episode: Episode) -> list[tuple[chess.Board, chess.Move]]:
    """Positions and the moves that were made in them."""
    boards = [chess.Board(plain_fen(text)) for text in episode.observations[:-1]]
    said = [plain_san(action) for action in episode.actions]
    return [(board, board.parse_san(san)) for board, san in zip(boards, said, strict=True)]


def is_best(board: chess.Board, move: chess.Move) -> bool:
    before = mate_plies(board)
    board.push(move)
    after = mate_plies(board)
    board.pop()
    return after is not None and before == after + 1


def play(name: str, count: int) -> list[Episode]:
    make = lambda: lmrl.make("endgames")  # noqa: E731
    return in_order(rollout(make_policy("endgames", name), make, map(Start, range(count)), task="endgames"))


@pytest.mark.nightly
def test_the_data_come_near_the_published_figures() -> None:
    episodes = record(500)
    wins = sum(episode.success for episode in episodes) / len(episodes)
    lengths = [len(episode) for episode in episodes]
    assert wins == pytest.approx(0.57, abs=0.07)  # published .59
    assert sum(lengths) / len(lengths) == pytest.approx(10.0, abs=1.2)  # published 11.9
    assert sum(episode.total_reward for episode in episodes) == wins * len(episodes)
    assert all(episode.terminated and not episode.illegal for episode in episodes)
    assert max(lengths) <= 150
    seen = [text for episode in episodes for text in episode.observations[:-1]]
    assert len(set(seen)) > 0.95 * len(seen)  # published .93


def test_the_share_of_random_moves_differs_from_game_to_game() -> None:
    shares = []
    for episode in record(60):
        best = [is_best(board, move) for board, move in moves(episode)]
        if len(best) >= 8:
            shares.append(sum(best) / len(best))
    assert min(shares) < 0.3 and max(shares) > 0.7
    assert 0.25 < sum(shares) / len(shares) < 0.65


def test_a_game_does_not_depend_on_the_others() -> None:
    assert record(40)[:12] == record(12, slots=5)
    starts = {recording("endgames").start(seed, index).seed for seed in range(3) for index in range(50)}
    assert len(starts) == 150 and recording_seed(0, 7) in starts


def test_the_players() -> None:
    assert set(policy_names("endgames")) == {"random", "behaviour", "optimal"}
    assert all(episode.success for episode in play("optimal", 20))
    assert all(is_best(board, move) for episode in play("optimal", 5) for board, move in moves(episode))
    lost = [episode for episode in play("random", 20) if not episode.success]
    assert len(lost) >= 14 and not any(episode.illegal for episode in lost)


def test_a_position_that_the_table_does_not_know() -> None:
    fen = "8/8/8/8/8/2k5/1P6/K7 w - - 0 1"
    request = Request(slot=0, seed=0, observations=("?",), info={"fen": fen})
    assert make_policy("endgames", "random").act([request])[0].text in (
        "b 3\n",
        "b 4\n",
        "K a 2\n",
        "K b 1\n",
        "b x c 3\n",
    )
    with pytest.raises(UserError, match="the distance to mate is known for a lone black king"):
        make_policy("endgames", "optimal").act([request])
