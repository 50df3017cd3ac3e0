"""GRPO, GiGPO and turn-level PPO as they train: through rounds, minibatches and checkpoints."""

import csv
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmrl.callbacks import KeepLast, RolloutCollection
from lmrl.errors import UserError
from lmrl.modules import GRPO, PPO, GiGPO, LanguageModule, load_module
from lmrl.modules.policy_gradient import RolloutEpisode
from lmrl.types import Episode
from tests.helpers.cases import cases
from tests.helpers.online import fit, rounds

pytestmark = pytest.mark.filterwarnings("ignore:(round [0-9]+. |all advantages|Experiment logs directory)")
KINDS = [
    pytest.param(GRPO, {"advantage": "rloo", "importance_sampling_level": "turn"}, marks=pytest.mark.nightly),
    (GRPO, {"advantage": "rebn", "use_kl_in_reward": True}),
    (GiGPO, {"anchor": "context"}),
    pytest.param(PPO, {"level": "turn", "head_bias": -2.0}, marks=pytest.mark.nightly),
]


def train(kind: type[LanguageModule], root: Path, bc_run: str, steps: int, given: dict[str, Any], **more: Any) -> Any:
    torch.manual_seed(len(more))
    module = kind(pretrained=bc_run, lr=1e-2, lr_schedule="constant", warmup_steps=0, **given)
    playing = RolloutCollection(episodes=6, slots=4, group_size=3)
    fit(module, rounds(epochs=2), root, steps, [KeepLast()], playing, **more)
    return module


def logged(root: Path, key: str) -> list[float]:
    with (root / "metrics.csv").open() as file:
        return [float(row[key]) for row in csv.DictReader(file) if row.get(key)]


@pytest.mark.parametrize(("kind", "given"), KINDS)
def test_the_first_ratios_are_one_and_a_stopped_run_goes_on(
    kind: type[LanguageModule], given: dict[str, Any], bc_run: str, tmp_path: Path
) -> None:
    whole = train(kind, tmp_path / "whole", bc_run, 13, given)
    first = logged(tmp_path / "whole", f"{kind.name}/first_ratio")
    assert len(first) >= 2 and first == pytest.approx([1.0] * len(first), abs=1e-5)
    assert max(logged(tmp_path / "whole", f"{kind.name}/approx_kl")) > 1e-5
    train(kind, tmp_path / "halves", bc_run, 8, given)
    checkpoint = tmp_path / "halves" / "last.ckpt"
    halves = train(kind, tmp_path / "halves", bc_run, 13, given, ckpt_path=checkpoint, weights_only=True)
    for (name, one), other in zip(whole.state_dict().items(), halves.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    for key in ("health/kl_to_start", "health/entropy", "health/noise_scale"):
        after = logged(tmp_path / "halves", key)
        assert after
        assert after == logged(tmp_path / "whole", key)[-len(after) :], key


def test_spread_of_the_groups_under_the_names_of_trl(bc_run: str, tmp_path: Path) -> None:
    """One of three groups earns .1 three times, whose mean is not .1 to the last bit; returns differ in the others."""
    module = GRPO(pretrained=bc_run)
    returns = ((0.1, 0.1, 0.1), (1.0, 0.0), (2.0, 6.0))
    episodes = [
        Episode("maze_fo", ("a", "b"), ("x",), (reward,), True, False, info={"group": group})
        for group, its in enumerate(returns)
        for reward in its
    ]
    assert module.spread(episodes) == pytest.approx({"reward_std": 2.5 / 3, "frac_reward_zero_std": 1 / 3})
    assert GRPO(pretrained=bc_run, advantage="rebn").spread(episodes) == {}
    train(GRPO, tmp_path, bc_run, 3, {})
    assert all(0.0 <= share <= 1.0 for share in logged(tmp_path, "grpo/frac_reward_zero_std")) and logged(
        tmp_path, "grpo/reward_std"
    )


def test_a_reference_that_is_only_logged_scores_a_sample(
    bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learned(kl_weight: float, name: str, stride: int = 1) -> tuple[GRPO, int]:
        scored: list[int] = []
        kl: list[float] = []

        class Counting(GRPO):
            def process(self, rollout: Sequence[RolloutEpisode]) -> dict[str, float]:
                log_ratio = np.concatenate([one.ref_logprob - one.logprob for one in rollout[::stride]])
                kl.append(float((np.exp(log_ratio) - 1.0 - log_ratio).mean()))
                return super().process(rollout)

            def ref_logits(self, batch: Any) -> Any:
                scored.append(batch.n_tokens)
                return super().ref_logits(batch)

        module = Counting(pretrained=bc_run, lr=1e-2, advantage="rebn", kl_weight=kl_weight)
        with torch.no_grad():  # as if the policy had moved from where it began
            module.ref_model.get_input_embeddings().weight.mul_(1.1)
        playing = RolloutCollection(episodes=96, slots=16)
        fit(module, rounds(batch_size=256), tmp_path / name, 2, playing=playing)
        assert logged(tmp_path / name, "grpo/kl") == pytest.approx(kl, rel=1e-4) and kl[-1] > 1e-4
        return module, sum(scored)

    sampled, few = learned(0.0, "sample", stride=3)
    monkeypatch.setattr("lmrl.modules.policy_gradient._KL_STRIDE", 1)
    whole, all_of_them = learned(0.0, "whole")
    assert few == pytest.approx(all_of_them / 3, rel=0.2)
    for (name, one), other in zip(sampled.state_dict().items(), whole.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
    monkeypatch.undo()
    assert learned(0.01, "penalty")[1] == pytest.approx(all_of_them, rel=0.1)


def test_only_the_policy_learns_and_a_checkpoint_plays(bc_run: str, tmp_path: Path) -> None:
    before = load_module(bc_run).model.state_dict()
    module = train(GiGPO, tmp_path, bc_run, 3, {})
    changed = [not torch.equal(tensor, before[name]) for name, tensor in module.model.state_dict().items()]
    assert any(changed) and not module.ref_model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.ref_model.state_dict().items())
    again = load_module(tmp_path / "last.ckpt")
    assert isinstance(again, GiGPO)
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, module.model.state_dict()[name])


@cases(
    ("kind", "given", "said"),
    [
        (GRPO, {"advantage": "gae"}, "advantage"),
        (GRPO, {"importance_sampling_level": "episode"}, "importance_sampling_level"),
        (GRPO, {"kl_loss_type": "k4"}, "kl_loss_type"),
        (GRPO, {"loss_agg_mode": "mean"}, "loss_agg_mode"),
        (GiGPO, {"anchor": "board"}, "anchor"),
        (GiGPO, {"advantage": "rebn"}, "GiGPO compares within groups"),
        (PPO, {"level": "episode"}, "level"),
    ],
)
def test_unknown_names_are_refused(kind: type[LanguageModule], given: dict[str, Any], said: str, bc_run: str) -> None:
    with pytest.raises(UserError, match=said):
        kind(pretrained=bc_run, **given)


def test_the_coefficient_of_a_penalty_in_the_loss_is_logged(bc_run: str, tmp_path: Path) -> None:
    module = train(GRPO, tmp_path, bc_run, 1, {"kl_weight": 0.1, "kl_target": 1e-4, "kl_horizon": 100})
    assert logged(tmp_path, "grpo/kl_weight") == [float(module.kl_weight)] == [pytest.approx(0.1 * 0.988)]


@cases(
    ("kind", "given", "rewards", "learns"),
    [
        # One and the same return, but the second game needs another turn for it.
        (GRPO, {"gamma": 0.9}, [[1.0], [0.0, 1.0]], True),
        (GRPO, {}, [[1.0], [0.0, 1.0]], False),
        (GiGPO, {}, [[1.0], [0.0, 1.0]], True),
    ],
)
def test_a_round_that_teaches_nothing_is_warned_of(
    kind: type[GRPO], given: dict[str, Any], rewards: list[list[float]], learns: bool, bc_run: str
) -> None:
    module = kind(pretrained=bc_run, **given)
    rollout = []
    for one in rewards:
        turns = len(one)
        played = Episode("maze_fo", ("o",) * (turns + 1), ("a",) * turns, tuple(one), True, False, info={"group": 0})
        reward = np.array(one)
        zeros = np.zeros(turns)
        rollout.append(RolloutEpisode(played, [], zeros, zeros, reward, np.ones(turns, int)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module.process(rollout)
    assert any("nothing can be learned" in str(warning.message) for warning in caught) is not learns
