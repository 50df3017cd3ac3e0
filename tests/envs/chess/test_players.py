from random import Random

import chess
import pytest

import lmrl
from lmrl.envs.chess.env import plain_san
from lmrl.envs.chess.players import ChessPlayer, any_move, searched
from lmrl.envs.registry import make_policy, policy_names, recording
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Request


def asked(seed: int, fen: str = chess.STARTING_FEN) -> Request:
    return Request(0, seed, ("",), info={"fen": fen})


def recorded(count: int, **env: object) -> list[Episode]:
    recipe = recording("chess", env)
    starts = (recipe.start(0, index) for index in range(count))
    make = lambda: lmrl.make("chess", **env)  # noqa: E731
    return in_order(rollout(recipe.policy, make, starts, task="chess", stop=recipe.stop))


def test_random_moves_are_legal_and_follow_from_the_seed() -> None:
    policy = make_policy("chess", "random")
    moves = [plain_san(policy.act([asked(seed)])[0].text) for seed in range(200)]
    assert len(set(moves)) == 20  # all that White has at the start
    assert moves == [plain_san(reply.text) for reply in policy.act([asked(seed) for seed in range(200)])]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_as_careless_as_it_says(share: float) -> None:
    fen = "6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"  # one move of many mates
    player = ChessPlayer(searched(1), lambda chance: share)
    mates = sum(plain_san(player.act([asked(seed, fen)])[0].text) == "Ra8#" for seed in range(300))
    legal = chess.Board(fen).legal_moves.count()
    assert mates / 300 == pytest.approx(1 - share + share / legal, abs=0.08)


def test_who_plays_what() -> None:
    assert policy_names("chess") == ("random", "behaviour")
    assert any_move(chess.Board("7k/8/8/8/8/8/8/K7 w - - 0 1"), Random(0)).uci() in ("a1a2", "a1b1", "a1b2")


@pytest.mark.nightly
def test_the_built_in_players_win_and_lose() -> None:
    episodes = recorded(12)
    assert {episode.total_reward for episode in episodes} >= {1.0, -1.0}
    assert all(episode.info["opponent"] == {"name": "alphabeta", "version": 1, "depth": 1} for episode in episodes)
    assert all(episode.illegal == 0 and episode.terminated for episode in episodes)
