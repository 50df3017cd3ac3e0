"""A round of PPO in numbers that were worked out by hand: two turns of two tokens, gamma 0.9, lambda 0.8."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lmrl.errors import UserError
from lmrl.losses import Experience
from lmrl.modules.policy_gradient import ProcessedRollout
from lmrl.modules.ppo import compute_advantages
from lmrl.tokens.encoding import Window
from lmrl.tokens.segments import Segment, segments
from lmrl.types import Episode
from tests.helpers.doubles import CHARS, episode

VALUES, END = ((0.5, 0.4), (0.2, 0.1)), 0.7
LOGPROBS = ((-0.1, -0.2), (-0.3, -0.4))
TERMINATED = [-0.3662528, -0.31424, 1.258, 1.9]
TRUNCATED = [-0.1311066, 0.012352, 1.7116, 2.53]
COLUMNS = tuple(name for name in Experience._fields if name not in Experience._field_defaults)  # those of every round
SETTINGS = {"kl_weight": 0.1, "gamma": 0.9, "gae_lambda": 0.8}


def game(terminated: bool) -> Episode:
    played = episode("oo", "ab", "o", "cd", "o", rewards=[-1, 2], terminated=terminated)
    ids = tuple(CHARS.encode(action) for action in played.actions)
    return replace(played, action_ids=ids, action_logprobs=LOGPROBS, action_values=VALUES)


def cut(games: list[Episode], window: Window) -> list[list[Segment]]:
    return [list(segments(game, CHARS, window)) for game in games]


def columns(found: ProcessedRollout) -> dict[str, list[list[float]]]:
    """Of each episode."""
    return {
        name: [np.concatenate([part.columns[name] for part in its]).tolist() for its in found.segments]
        for name in COLUMNS
    }


@pytest.mark.parametrize("window", [Window(), Window(texts=1)])
def test_a_round_in_numbers(window: Window) -> None:
    games = [game(True), game(False)]
    ref = [np.concatenate(LOGPROBS), np.concatenate(LOGPROBS)]
    ref[1] = ref[1] - np.asarray([0.0, 0.0, math.log(2.0), 0.0])  # the policy says that token twice as often
    found = compute_advantages(games, cut(games, window), ref, [0.0, END], **SETTINGS)
    penalty = 0.1 * math.log(2.0)
    penalised = np.asarray(TRUNCATED) - penalty * np.asarray([0.72**2, 0.72, 1.0, 0.0])
    advantages = [np.asarray(TERMINATED), penalised]
    pool, values = np.concatenate(advantages), np.concatenate(VALUES)
    seen = columns(found)
    for index, advantage in enumerate(advantages):
        assert seen["logprob"][index] == pytest.approx(np.concatenate(LOGPROBS).tolist())
        assert seen["value"][index] == pytest.approx(values.tolist())
        assert seen["target"][index] == pytest.approx((advantage + values).tolist(), abs=1e-5)
        assert seen["advantage"][index] == pytest.approx(((advantage - pool.mean()) / pool.std()).tolist(), abs=1e-5)
    assert found.kl == pytest.approx((0.5 - 1.0 + math.log(2.0)) / 8)
    targets = pool + np.tile(values, 2)
    assert found.metrics["explained_variance"] == pytest.approx(1.0 - pool.var() / targets.var())


def test_what_was_noted_of_other_tokens_is_refused() -> None:
    games = [replace(game(True), action_values=((0.5,), (0.2, 0.1)))]
    with pytest.raises(UserError, match=r"need action_values of the very tokens .* has 3 of them"):
        compute_advantages(games, cut(games, Window()), [np.zeros(4)], [0.0], **SETTINGS)


def test_a_round_without_tokens_has_no_kl() -> None:
    found = compute_advantages([], [], [], [], **SETTINGS)
    assert (found.segments, found.kl) == ([], 0.0) and math.isnan(found.metrics["explained_variance"])
