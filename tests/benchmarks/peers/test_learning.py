"""Learning beside TRL: both sides play, have the same gradient, and the time to a return is read off a curve."""

from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("trl")

from benchmarks.peers import curves, learning, training
from lmrl.models.tokenizer import load_tokenizer
from lmrl.modules import GRPO
from lmrl.modules.policy_gradient import RolloutEpisode, rollout_episode
from lmrl.tokens.collate import collate
from lmrl.tokens.encoding import Encoder, Window
from lmrl.tokens.segments import segments
from lmrl.types import Episode


@pytest.mark.nightly
def test_both_sides_play_rounds_that_return_alike(tmp_path: Path) -> None:
    start = curves.start_of("wordle", tmp_path / "start")
    mine = learning.ours("wordle", start, tmp_path / "ours", 4, rounds=2)
    other = learning.theirs("wordle", start, tmp_path / "theirs", 4, rounds=2)
    assert len(mine) == len(other) == 2
    for curve in (mine, other):
        for _, played in curve:
            assert -3.6 < played < -2.6, "128 games of the policy that both start from return -3.1, give or take .1"
    assert mine[0][0] < mine[1][0]
    assert other[0][0] < other[1][0]


@pytest.mark.nightly
def test_the_gradient_of_a_round_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the spread within a group of eight: TRL's is that of a sample, which makes its gradient smaller."""
    seen: dict[str, Any] = {}
    compute_loss = training.Timed._compute_loss

    def noted_loss(trainer: training.Timed, model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = compute_loss(trainer, model, inputs)
        gradients = torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
        seen["gradients"] = dict(zip(dict(model.named_parameters()), gradients, strict=True))
        seen["inputs"] = inputs
        seen["games"] = [(list(its.texts), its._rewards) for its in trainer.environments]
        return loss

    monkeypatch.setattr(training.Timed, "_compute_loss", noted_loss)
    start = curves.start_of("wordle", tmp_path / "start")
    learning.theirs("wordle", start, tmp_path / "theirs", 0, rounds=1)

    module = GRPO(pretrained=str(start), kl_weight=0.0, loss_agg_mode="seq-mean-token-mean")
    rollout = _read_by_lmrl(module, seen, Encoder(load_tokenizer(str(start))))
    module.process(rollout)
    loss = module.losses(collate([part for episode in rollout for part in episode.trained_segments()])).loss
    parameters = dict(module.model.named_parameters())
    gradients = torch.autograd.grad(loss, [*parameters.values()])
    for name, gradient in zip(parameters, gradients, strict=True):
        expected = seen["gradients"][name] * (8 / 7) ** 0.5
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


def _read_by_lmrl(module: GRPO, seen: dict[str, Any], encoder: Encoder) -> list[RolloutEpisode]:
    """The games of TRL's round as episodes of a round of ours."""
    inputs = seen["inputs"]
    left = dict(enumerate(seen["games"]))
    rollout = []
    for row, padded in enumerate(inputs["completion_ids"]):  # in another order: TRL shuffles what it learns from
        kept = inputs["completion_mask"][row].bool()
        pairs = zip(inputs["tool_mask"][row][kept].tolist(), padded[kept].tolist(), strict=True)
        said = [tuple(token for _, token in run) for own, run in groupby(pairs, lambda pair: pair[0]) if own]
        actions = [encoder.decode(ids) for ids in said]
        number = next(number for number, (texts, _) in left.items() if texts[1::2] == actions)
        texts, total = left.pop(number)
        rewards = (0.0,) * (len(actions) - 1) + (total,)
        info = {"group": number // curves.GROUP_SIZE}
        episode = Episode("wordle", tuple(texts[::2]), tuple(actions), rewards, True, False, 0, info, tuple(said))
        parts = list(segments(episode, encoder, Window(None, 1000)))
        with torch.no_grad():
            scores = module.action_scores(collate(parts))[:, 0].tolist()
        lengths = np.cumsum([len(ids) for ids in said])
        by_action = tuple(tuple(part) for part in np.split(np.array(scores), lengths[:-1]))
        rollout.append(rollout_episode(replace(episode, action_logprobs=by_action), parts, np.array(scores)))
    assert not left
    return rollout


def test_the_time_to_a_return_is_that_of_the_first_rounds_that_reach_it() -> None:
    curve = [(float(second), played) for second, played in enumerate([0.0, 4.0, 0.0, 0.0, 2.0, 2.0, 4.0, 4.0])]
    assert curves.seconds_to(curve, 1.0) == 3.0
    assert curves.seconds_to(curve, 2.0) == 6.0
    assert curves.seconds_to(curve, 5.0) is None
