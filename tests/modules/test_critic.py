"""The critic that reads the policy's states and leaves them alone, and the baseline by turn below it."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmrl.callbacks import KeepLast
from lmrl.losses import explained_variance
from lmrl.models.critic import DetachedCritic, TurnBaseline
from lmrl.modules import PPO
from tests.helpers.online import fit, rounds

# Six short games of an untrained model may well be equal.
pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ")


def test_the_baseline_is_the_running_mean_of_each_turn() -> None:
    baseline = TurnBaseline()
    assert baseline.values(np.arange(2)).tolist() == [0.0, 0.0]
    baseline.update([np.asarray([-3.0, -2.0]), np.asarray([-5.0])])
    assert baseline.values(np.arange(3)).tolist() == [-4.0, -2.0, -2.0]  # no episode reached the third turn
    baseline.update([np.asarray([0.0, 0.0, 7.0])])
    # The earlier round counts half: turn 0 has seen 2 episodes of -4 and one of 0.
    assert baseline.values(np.arange(4)).tolist() == pytest.approx([-8.0 / 2 / 2.0, -2.0 / 2 / 1.5, 7.0, 7.0])


def regression(count: int) -> tuple[torch.Tensor, np.ndarray]:
    hidden = torch.randn(count, 8, generator=torch.Generator().manual_seed(count))
    return hidden, 5.0 * hidden[:, 0].numpy().astype(np.float64)


def test_the_critic_explains_what_its_states_tell() -> None:
    torch.manual_seed(0)
    critic = DetachedCritic(8, lr=3e-3, passes=60)
    hidden, targets = regression(1000)
    assert critic.residual(hidden).abs().max() == 0.0, "it begins as the baseline"
    critic.fit(hidden, np.arange(1000), targets, [0])
    fresh, wanted = regression(999)
    assert explained_variance(critic.residual(fresh).numpy(), wanted) > 0.95
    assert not any(parameter.requires_grad for parameter in critic.parameters())


def test_a_new_scale_leaves_the_values_as_they_were() -> None:
    torch.manual_seed(0)
    critic = DetachedCritic(8, lr=3e-3, passes=5)
    hidden, targets = regression(500)
    critic.fit(hidden, np.arange(500), targets, [0])
    before = critic.residual(hidden)
    critic._follow_targets(100.0)
    critic._follow_states(3.0 * hidden + 1.0, 500)
    torch.testing.assert_close(critic.residual(hidden), before, atol=1e-4, rtol=1e-4)


def test_a_resumed_critic_learns_as_if_nothing_had_happened() -> None:
    hidden, targets = regression(500)

    def fitted(resume: bool) -> torch.Tensor:
        torch.manual_seed(0)
        critic = DetachedCritic(8, lr=3e-3, passes=1)
        critic.fit(hidden, np.arange(500), targets, [0])
        if resume:
            other = DetachedCritic(8, lr=3e-3, passes=1)
            other.load_state_dict(critic.state_dict())
            other.restore_optimizer(critic.optimizer_state())
            critic = other
        critic.fit(hidden, np.arange(500), targets, [1])
        return critic.residual(hidden)

    assert torch.equal(fitted(False), fitted(True))


@pytest.mark.parametrize("lora", [None, {"r": 2}])
def test_a_critic_of_its_own_learns_its_trunk_and_no_weight_of_the_policy(
    lora: dict[str, Any] | None, bc_run: str, tmp_path: Path
) -> None:
    module = PPO(pretrained=bc_run, critic="own", critic_warmup_rounds=2, critic_lr=1e-2, lr=0.0, lora=lora)
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    fit(module, rounds(), tmp_path, steps=1)
    moved = {name for name, parameter in module.named_parameters() if not torch.equal(parameter, before[name])}
    assert any(name.startswith("critic.head.") for name in moved)
    of_trunk = {name for name in moved if name.startswith("critic.trunk.")}
    assert of_trunk and all("lora_" in name for name in of_trunk) == (lora is not None)
    assert all(name.startswith("critic.") for name in moved)


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_a_run_with_a_critic_of_its_own_goes_on_bit_by_bit(bc_run: str, tmp_path: Path) -> None:
    def run(root: Path, steps: int) -> dict[str, torch.Tensor]:
        last = root / "last.ckpt"
        go = {"ckpt_path": last, "weights_only": True} if last.is_file() else {}
        module = PPO(pretrained=bc_run, critic="own", critic_lr=1e-2, lr=1e-2, lr_schedule="constant")
        torch.manual_seed(last.is_file())
        fit(module, rounds(), root, steps, callbacks=[KeepLast()], **go)
        return module.state_dict()

    torch.manual_seed(0)
    whole = run(tmp_path / "whole", 9)
    torch.manual_seed(0)
    run(tmp_path / "halves", 5)
    again = run(tmp_path / "halves", 9)
    for name, tensor in whole.items():
        assert torch.equal(tensor, again[name]), name


def logged(root: Path, key: str) -> list[float]:
    with (root / "metrics.csv").open() as file:
        return [float(row[key]) for row in csv.DictReader(file) if row.get(key)]


def test_the_policy_waits_while_the_critic_warms_up(bc_run: str, tmp_path: Path) -> None:
    module = PPO(pretrained=bc_run, lr=1e-2, warmup_steps=0, critic_warmup_rounds=2)
    data = rounds()
    fit(module, data, tmp_path, steps=1)
    assert data.round == 3
    assert module.critic is not None and float(module.critic.mean_square) > 0.0
    assert logged(tmp_path, "ppo/first_ratio") == pytest.approx([1.0], abs=1e-5)
    assert logged(tmp_path, "ppo/kl") == pytest.approx([0.0] * 3, abs=1e-6), "nothing has moved before the first step"


def test_what_the_policy_learns_does_not_depend_on_how_hard_the_critic_learns(bc_run: str, tmp_path: Path) -> None:
    """In its first round, where V is the same: only the value loss could tell the two apart."""

    def learned(passes: int, root: Path) -> torch.Tensor:
        torch.manual_seed(0)
        module = PPO(pretrained=bc_run, lr=1e-2, warmup_steps=0, critic_warmup_rounds=0, critic_passes=passes)
        fit(module, rounds(), root, steps=1, settings={"gradient_clip_val": 1e-3})
        return torch.cat([parameter.flatten() for parameter in module.model.parameters()])

    assert torch.equal(learned(0, tmp_path / "none"), learned(20, tmp_path / "much"))
