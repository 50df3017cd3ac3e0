"""Returns estimated from what another policy played, against exact values of small games."""

from itertools import product
from math import log

import numpy as np
import pytest

from lmrl.errors import UserError
from lmrl.evaluation.off_policy import off_policy_estimate

#: Probability of the action 1 in the first state, and in the second after each first action.
FIRST = 0.9
SECOND = {0: 0.2, 1: 0.7}


def reward(first: int, second: int | None) -> list[float]:
    """Return the rewards of a game; a first action 0 ends it if the coin says so (`second` is None)."""
    if second is None:
        return [-1.0]
    return [2.0 * first, [[1.0, 5.0], [3.0, -4.0]][first][second]]


def all_games() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return every game of a behaviour policy that tosses coins, each as often as it happens in eight games."""
    rewards = []
    log_ratios = []
    for first, coin, second in product((0, 1), repeat=3):
        chance = [(FIRST if first else 1 - FIRST) / 0.5]
        ended = first == 0 and coin == 0
        if not ended:
            chance.append((SECOND[first] if second else 1 - SECOND[first]) / 0.5)
        rewards.append(np.array(reward(first, None if ended else second)))
        log_ratios.append(np.array([log(c) for c in chance]))
    return rewards, log_ratios


def test_all_games_together_give_the_exact_value() -> None:
    """If the games are distributed exactly as the behaviour policy plays them, the estimate is the value."""
    exact = 0.0
    for first, coin, second in product((0, 1), repeat=3):
        chance = (FIRST if first else 1 - FIRST) * 0.5
        ended = first == 0 and coin == 0
        chance *= 0.5 if ended else SECOND[first] if second else 1 - SECOND[first]
        exact += chance * sum(reward(first, None if ended else second))
    rewards, log_ratios = all_games()
    found = off_policy_estimate(rewards, log_ratios)
    assert found.return_mean == pytest.approx(exact, abs=1e-12)
    assert found.gain == pytest.approx(exact - np.mean([sum(game) for game in rewards]), abs=1e-12)
    # Weights of whole games, by hand: 0.2 (two ended), 0.2 * 1.6, 0.2 * 0.4, and twice 1.8 * 0.6 and 1.8 * 1.4.
    weights = np.array([0.2, 0.2, 0.32, 0.08, 1.08, 1.08, 2.52, 2.52])
    assert found.effective_episodes == pytest.approx(weights.sum() ** 2 / np.square(weights).sum())


def test_the_interval_covers_the_value() -> None:
    """At least 85 of 100 intervals hold the value (95 are expected); each is for 60 games, drawn from all games."""
    rewards, log_ratios = all_games()
    exact = off_policy_estimate(rewards, log_ratios).return_mean
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        games = draw.integers(8, size=60)
        found = off_policy_estimate([rewards[game] for game in games], [log_ratios[game] for game in games])
        covered += found.return_ci.low <= exact <= found.return_ci.high
    assert 85 <= covered < 100


def test_the_policy_of_the_data_gains_nothing() -> None:
    rewards, log_ratios = all_games()
    found = off_policy_estimate(rewards, [np.zeros_like(ratios) for ratios in log_ratios])
    assert (found.gain, *found.gain_ci) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    assert found.effective_episodes == 8


def test_long_replies_do_not_underflow_and_impossible_ones_are_refused() -> None:
    rewards, log_ratios = all_games()
    shifted = [ratios - 2_000.0 for ratios in log_ratios]  # as if every reply had hundreds of unlikely tokens
    plain = off_policy_estimate(rewards[4:], log_ratios[4:]).return_mean
    assert off_policy_estimate(rewards[4:], shifted[4:]).return_mean == pytest.approx(plain)
    # Only one game is possible: nothing is known beyond it, and resamples without it are left out.
    single = [ratios if index == 5 else ratios - np.inf for index, ratios in enumerate(log_ratios)]
    assert off_policy_estimate(rewards, single).return_mean == sum(rewards[5])
    with pytest.raises(UserError, match="would have written none of the recorded replies"):
        off_policy_estimate(rewards, [ratios - np.inf for ratios in log_ratios])
    with pytest.raises(UserError, match="at least one episode"):
        off_policy_estimate([], [])
