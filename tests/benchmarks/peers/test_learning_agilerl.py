"""Learning beside AgileRL: both sides play the same games, and its gradient is that of the same loss."""

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip(
    "agilerl", reason="AgileRL needs another transformers: `make agilerl` tests it in an environment of its own"
)
import lmrl
from benchmarks.peers import curves, learning_agilerl
from lmrl.models.tokenizer import load_tokenizer
from lmrl.tokens.encoding import Encoder

# What AgileRL and its packages say of themselves.
pytestmark = pytest.mark.filterwarnings("ignore")

TASK = "wordle"


def test_both_sides_play_rounds_that_return_alike(tmp_path: Path) -> None:
    start = curves.start_of(TASK, tmp_path / "start")
    mine = learning_agilerl.ours(TASK, start, tmp_path / "ours", 4, rounds=2)
    other = learning_agilerl.theirs(TASK, start, tmp_path / "theirs", 4, rounds=2)
    assert len(mine) == len(other) == 2
    for curve in (mine, other):
        for _, played in curve:
            assert -3.6 < played < -2.6, "128 games of the policy that both start from return -3.1, give or take .1"


def test_a_game_is_read_as_the_same_tokens(tmp_path: Path) -> None:
    start = curves.start_of(TASK, tmp_path / "start")
    tokenizer = load_tokenizer(str(start))
    encoder = Encoder(tokenizer)
    env = lmrl.make(TASK)
    text, _ = env.reset(seed=3)
    harness = learning_agilerl.harness_of(TASK, tokenizer, 256)
    prompt, _ = harness.reset(seed=3)
    expected = list(encoder.encode(text))
    for action in ("c r a n e\n", "s l o t h\n"):
        said = encoder.encode(action)
        assert prompt["input_ids"][0].tolist() == expected
        completion = torch.tensor([[*expected, *said]])
        prompt, reward, *_ = harness.step(completion)
        text, ours, *_ = env.step(action)
        assert float(reward) == float(ours)
        expected = [*expected, *said, *encoder.encode(text)]
    assert prompt["input_ids"][0].tolist() == expected


def test_the_gradient_of_a_round_is_that_of_the_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over episodes of the mean over their tokens, with advantages over the sample's spread of a group."""
    seen: dict[str, Any] = {}
    agent_of = learning_agilerl.agent_of

    def noting_agent(*arguments: Any) -> Any:
        agent = agent_of(*arguments)
        learn = agent.learn

        def noting(experiences: Any, **settings: Any) -> Any:
            seen["expected"] = _gradients(agent, *experiences)
            return learn(experiences, **settings)

        agent.learn = noting
        agent.optimizer.optimizer.register_step_pre_hook(lambda *_: seen.update(found=_of_adapters(agent)))
        return agent

    monkeypatch.setattr(learning_agilerl, "agent_of", noting_agent)
    start = curves.start_of(TASK, tmp_path / "start")
    learning_agilerl.theirs(TASK, start, tmp_path / "theirs", 0, rounds=1)
    assert seen["found"].keys() == seen["expected"].keys() and seen["found"]
    for name, gradient in seen["expected"].items():
        tolerance = 1e-4 * gradient.abs().max().item()
        torch.testing.assert_close(seen["found"][name], gradient, rtol=1e-3, atol=tolerance)


def _gradients(agent: Any, ids: Any, masks: Any, rewards: torch.Tensor) -> dict[str, torch.Tensor]:
    """The gradients of the adapters by the formula, episode by episode."""
    returns = rewards.sum(dim=1).view(-1, curves.GROUP_SIZE)
    spread = returns.std(dim=1, keepdim=True)
    advantages = ((returns - returns.mean(dim=1, keepdim=True)) / spread.clamp_min(1e-8)).flatten()
    for row, mask, advantage in zip(ids, masks, advantages, strict=True):
        row = row.reshape(1, -1)
        mask = mask.reshape(-1).bool()
        scores = agent.actor(row).logits[0, :-1].log_softmax(-1)
        chosen = scores.gather(1, row[0, 1:, None])[:, 0][mask]
        loss = -advantage * chosen.mean() / len(advantages)
        loss.backward()
    found = _of_adapters(agent)
    agent.actor.zero_grad()
    return found


def _of_adapters(agent: Any) -> dict[str, torch.Tensor]:
    named = agent.actor.named_parameters()
    return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}
