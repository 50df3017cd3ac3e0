"""A round of PPO in numbers that were worked out by hand: two turns of two tokens, gamma 0.9, lambda 0.8."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import Precision

from lmrl.errors import UserError
from lmrl.losses import PPOColumns
from lmrl.modules import PPO
from lmrl.modules.policy_gradient import RolloutEpisode, rollout_episode, values_per_token
from lmrl.modules.ppo import compute_advantages
from lmrl.tokens.encoding import Window
from lmrl.tokens.segments import segments
from lmrl.types import Episode
from tests.helpers.doubles import CHARS, episode

VALUES = ((0.5, 0.4), (0.2, 0.1))
END = 0.7
LOGPROBS = ((-0.1, -0.2), (-0.3, -0.4))
TERMINATED = [-0.3662528, -0.31424, 1.258, 1.9]
TRUNCATED = [-0.1311066, 0.012352, 1.7116, 2.53]
COLUMNS = tuple(name for name in PPOColumns._fields if name not in PPOColumns._field_defaults)  # those of every round
TINY = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 32}
SETTINGS = {"kl_weight": 0.1, "gamma": 0.9, "gae_lambda": 0.8, "lambda_level": "token"}


def game(terminated: bool) -> Episode:
    played = episode("oo", "ab", "o", "cd", "o", rewards=[-1, 2], terminated=terminated)
    ids = tuple(CHARS.encode(action) for action in played.actions)
    return replace(played, action_ids=ids, action_logprobs=LOGPROBS, action_values=VALUES)


def rollout_of(games: list[Episode], window: Window, ref: list[np.ndarray]) -> list[RolloutEpisode]:
    cut = [list(segments(game, CHARS, window)) for game in games]
    return [rollout_episode(*episode) for episode in zip(games, cut, ref, strict=True)]


def columns(rollout: list[RolloutEpisode]) -> dict[str, list[list[float]]]:
    """The columns that batches are made from, of each episode."""
    trained = [episode.trained_segments() for episode in rollout]
    return {
        name: [np.concatenate([part.columns[name] for part in its]).tolist() for its in trained] for name in COLUMNS
    }


@pytest.mark.parametrize("window", [Window(), Window(texts=1)])
def test_a_round_in_numbers(window: Window) -> None:
    games = [game(True), game(False)]
    ref = [np.concatenate(LOGPROBS), np.concatenate(LOGPROBS)]
    ref[1] = ref[1] - np.asarray([0.0, 0.0, math.log(2.0), 0.0])  # the policy says that token twice as often
    rollout = rollout_of(games, window, ref)
    returns = compute_advantages(rollout, [np.concatenate(VALUES)] * 2, [0.0, END], **SETTINGS)
    penalty = 0.1 * math.log(2.0)
    penalised = np.asarray(TRUNCATED) - penalty * np.asarray([0.72**2, 0.72, 1.0, 0.0])
    advantages = [np.asarray(TERMINATED), penalised]
    pool = np.concatenate(advantages)
    values = np.concatenate(VALUES)
    seen = columns(rollout)
    for index, advantage in enumerate(advantages):
        assert seen["logprob"][index] == pytest.approx(np.concatenate(LOGPROBS).tolist())
        assert seen["value"][index] == pytest.approx(values.tolist())
        assert seen["target"][index] == pytest.approx((advantage + values).tolist(), abs=1e-5)
        assert seen["advantage"][index] == pytest.approx(((advantage - pool.mean()) / pool.std()).tolist(), abs=1e-5)
    last = 2.0 + 0.9 * END  # of the last token, whose reward is 2
    third = 0.9 * last - penalty
    second = 0.9 * third - 1.0
    assert returns[1].tolist() == pytest.approx([0.9 * second, second, third, last])


def test_what_was_noted_of_other_tokens_is_refused() -> None:
    strange = replace(game(True), action_values=((0.5,), (0.2, 0.1)))
    with pytest.raises(UserError, match=r"need action_values of the very tokens .* has 3 of them"):
        values_per_token(strange, "action_values", [*segments(strange, CHARS, Window())])


def test_the_lambda_of_ppo_keeps_the_credit_within_a_turn() -> None:
    """By default, lambda fades credit between turns alone: here between the first token and the three of turn two."""
    values = ((0.5,), (0.4, 0.2, 0.1))
    played = replace(
        episode("oo", "a", "o", "bcd", "o", rewards=[-1, 2], terminated=False),
        action_ids=tuple(map(CHARS.encode, ("a", "bcd"))),
        action_logprobs=((-0.1,), (-0.2, -0.3, -0.4)),
        action_values=values,
    )
    rollout = rollout_of([played], Window(), [np.concatenate(LOGPROBS)])
    module = PPO(architecture=TINY, critic="shared", gamma=0.9, gae_lambda=0.8)
    module._end_values = lambda rollout: [END]  # type: ignore[method-assign]
    module.process(rollout)
    # Errors r + 0.9 V' - V of the four tokens, from the last to the first.
    d = 2 + 0.9 * 0.7 - 0.1
    c = 0.9 * 0.1 - 0.2
    b = 0.9 * 0.2 - 0.4
    a = -1 + 0.9 * 0.4 - 0.5
    third = c + 0.9 * d
    second = b + 0.9 * third
    target = np.asarray([a + 0.9 * 0.8 * second, second, third, d]) + np.concatenate(values)
    assert rollout[0].columns["target"].tolist() == pytest.approx(target.tolist())


def test_a_truncated_episode_has_the_baseline_of_the_turn_that_it_did_not_reach(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The critic is new, so V is the baseline of the turn; with lambda 1 a target is the rewards and the end's V."""
    module = PPO(architecture=TINY, critic_passes=0, gamma=1.0, gae_lambda=1.0)
    assert module.critic is not None
    module.critic.baseline.update([np.asarray([-6.0, -4.0, -1.0])])
    module._trainer = SimpleNamespace(precision_plugin=Precision())  # type: ignore[assignment]
    data = SimpleNamespace(seed=0, round=0, minibatch_size=8)
    for place in ("ppo", "policy_gradient"):
        monkeypatch.setattr(f"lmrl.modules.{place}.online_datamodule", lambda *_: data)
    short = replace(
        episode("oo", "ab", "o", rewards=[-1], terminated=False),
        action_ids=(CHARS.encode("ab"),),
        action_logprobs=LOGPROBS[:1],
    )
    rollout = rollout_of([short, game(False)], Window(), [np.concatenate(LOGPROBS[:1]), np.concatenate(LOGPROBS)])
    with torch.no_grad():
        module.process(rollout)
    assert rollout[0].columns["target"].tolist() == pytest.approx([-1 - 4] * 2)
    assert rollout[1].columns["target"].tolist() == pytest.approx([-1 + 2 - 1, -1 + 2 - 1, 2 - 1, 2 - 1])
