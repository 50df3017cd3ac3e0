"""Tests of the health that an online run logs, and of when it stops the run."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer

from lmrl.callbacks import RolloutCollection
from lmrl.callbacks.health import WINDOW, RoundHealth, causes
from lmrl.modules import PPO
from lmrl.types import Episode
from tests.helpers.doubles import episode
from tests.helpers.online import fit, rounds

# Six short games of an untrained model are sometimes equal.
pytestmark = pytest.mark.filterwarnings("ignore:round [0-9]+. ")


def games(mean: float, count: int = 64, seed: int = 0) -> list[Episode]:
    returns = np.random.default_rng(seed).normal(mean, 1.0, count)
    return [episode("o", "a", "o", rewards=[float(one)], terminated=True) for one in returns]


def played(means: list[float]) -> list[str | None]:
    health = RoundHealth()
    return [health.add(number, games(mean, seed=number)) for number, mean in enumerate(means, start=1)]


def test_the_error_of_a_window_of_few_starts_is_not_too_small() -> None:
    health = RoundHealth()
    returns = [1.0, 5.0, 2.0, 4.0, 3.0]
    for number, one in enumerate(returns):
        health.add(number, [episode("o", "a", "o", rewards=[one], terminated=True)])
    assert health.best is not None and WINDOW == len(returns)
    assert health.best.variance == pytest.approx(np.var(returns, ddof=1) / len(returns))


def test_a_run_has_fallen_when_it_is_far_below_its_best_rounds() -> None:
    lines = played([0.0] * WINDOW + [1.0] * WINDOW + [0.0] * WINDOW)
    assert lines[: 2 * WINDOW + 1] == [None] * (2 * WINDOW + 1)
    assert lines[-1] is not None and "rounds 11 to 15" in lines[-1] and "in rounds 6 to 10" in lines[-1]


def test_a_fall_between_rounds_that_all_returned_the_same_is_found() -> None:
    health = RoundHealth()
    lines = []
    for number in range(1, 2 * WINDOW + 1):
        returned = 1.0 if number <= WINDOW else 0.0
        lines.append(health.add(number, [episode("o", "a", "o", rewards=[returned], terminated=True)]))
    assert lines[-1] is not None and "returns within each do not differ" in lines[-1]


def test_rounding_is_no_fall() -> None:
    """The sum of 63 times -.3 is not 63 / 64 of the sum of 64, to the last bit."""
    health = RoundHealth()
    for number in range(1, 30):
        count = 64 if number <= 15 else 63
        same = [episode("o", "a", "o", rewards=[-0.3], terminated=True)] * count
        assert health.add(number, same) is None


def test_noise_alone_is_no_fall() -> None:
    assert not any(played([0.0] * 300))


def groups_of_games(mean: float, seed: int) -> list[Episode]:
    """Eight starts, some of which pay more than others, and 64 episodes of each."""
    draw = np.random.default_rng(seed)
    episodes = []
    for group, mean_of_start in enumerate(draw.normal(mean, 10.0, 8)):
        for one in draw.normal(mean_of_start, 1.0, 64):
            played = episode("o", "a", "o", rewards=[float(one)], terminated=True)
            episodes.append(replace(played, info={"group": group}))
    return episodes


def test_the_episodes_of_a_group_count_once() -> None:
    health = RoundHealth()
    # The means of rounds differ by their starts alone.
    assert not any([health.add(number, groups_of_games(0.0, seed=number)) for number in range(1, 41)])
    # A fall that is larger than the spread of the starts is still found.
    assert any([health.add(number, groups_of_games(-60.0, seed=number)) for number in range(41, 46)])


def test_a_resumed_run_remembers_its_best_rounds() -> None:
    first = RoundHealth()
    second = RoundHealth()
    for number in range(1, 2 * WINDOW + 1):
        first.add(number, games(1.0, seed=number))
    second.load_state_dict(first.state_dict())
    for number in range(2 * WINDOW + 1, 3 * WINDOW + 1):
        assert first.add(number, games(0.0, seed=number)) == second.add(number, games(0.0, seed=number))


def test_the_cause_is_named() -> None:
    assert "the critic's" in causes({"health/critic_share": 0.8})
    assert "hardly varies" in causes({"health/entropy": 0.01})
    assert "nothing else" in causes({})


def rows(root: Path) -> list[dict[str, str]]:
    with (root / "metrics.csv").open() as file:
        return [*csv.DictReader(file)]


@pytest.mark.parametrize("critic", ["shared", "detached"])
def test_an_online_run_logs_its_health(critic: str, bc_run: str, tmp_path: Path) -> None:
    fit(PPO(pretrained=bc_run, critic=critic, lr=1e-2), rounds(epochs=2), tmp_path, steps=12)
    logged = {name for row in rows(tmp_path) for name, value in row.items() if value and name.startswith("health/")}
    expected = {"return", "success", "entropy", "kl_to_start", "kl_to_last_round", "clip_fraction", "noise_scale"}
    expected |= {"explained_variance", "critic_share" if critic == "shared" else "explained_by_turn"}
    assert {name.partition("/")[2] for name in logged} == expected
    if critic == "shared":
        shares = [float(row["ppo/critic_share"]) for row in rows(tmp_path) if row["ppo/critic_share"]]
        assert shares and all(0.0 <= share <= 1.0 for share in shares) and max(shares) > 0.05


def test_the_noise_scale_of_health_is_in_episodes(bc_run: str, tmp_path: Path) -> None:
    data = rounds()
    playing = RolloutCollection(episodes=6, slots=4)
    trainer = fit(PPO(pretrained=bc_run), data, tmp_path, steps=2, playing=playing)
    trainer.callback_metrics["train/noise_scale"] = torch.tensor(100.0)
    segments = len(data.played)
    assert segments > 6
    assert playing._health_metrics()["health/noise_scale"] == pytest.approx(100.0 * 6 / segments)


class KeepAll(Callback):
    """Keeps a checkpoint of every step, as it is at the end of its batch."""

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        trainer.save_checkpoint(Path(trainer.default_root_dir) / f"{trainer.global_step}.ckpt")


def health_rows(root: Path) -> dict[int, dict[str, str]]:
    """Return the group ``health/`` of each round, by the step at which the round was played."""
    found = {}
    for row in rows(root):
        if row["health/return"]:
            found[int(row["step"])] = {name: value for name, value in row.items() if name.startswith("health/")}
    return found


def test_a_run_that_resumes_between_two_rounds_logs_the_same_health(bc_run: str, tmp_path: Path) -> None:
    fit(PPO(pretrained=bc_run), rounds(), tmp_path, steps=8, callbacks=[KeepAll()])
    whole = health_rows(tmp_path)
    between = max(whole)
    more = {"ckpt_path": str(tmp_path / f"{between}.ckpt"), "weights_only": True}
    fit(PPO(pretrained=bc_run), rounds(), tmp_path / "resumed", steps=8, **more)
    resumed = health_rows(tmp_path / "resumed")
    assert between in resumed
    for step, health in resumed.items():
        assert health == whole[step]


def test_a_run_that_resumes_within_a_repetition_logs_the_same_noise_scale(bc_run: str, tmp_path: Path) -> None:
    def noise_scales(root: Path) -> dict[int, str]:
        return {int(row["step"]): row["train/noise_scale"] for row in rows(root) if row["train/noise_scale"]}

    fit(PPO(pretrained=bc_run), rounds(epochs=2), tmp_path, steps=8, callbacks=[KeepAll()])
    # The second half of the eight steps repeats the first round.
    more = {"ckpt_path": str(tmp_path / "6.ckpt"), "weights_only": True}
    fit(PPO(pretrained=bc_run), rounds(epochs=2), tmp_path / "resumed", steps=8, **more)
    whole = noise_scales(tmp_path)
    resumed = noise_scales(tmp_path / "resumed")
    assert [*resumed] == [6, 7]
    assert resumed == {step: whole[step] for step in resumed}


def test_a_run_that_has_fallen_ends(bc_run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fallen(self: Any, number: int, episodes: Any) -> str | None:
        return "the run has fallen: a return of -2 in rounds 2 to 6" if number == 3 else None

    monkeypatch.setattr(RoundHealth, "add", fallen)
    data = rounds()
    with pytest.warns(UserWarning, match=r"the run has fallen: .* Training stops; `best` is kept"):
        run = fit(PPO(pretrained=bc_run, critic="shared"), data, tmp_path / "stopped", steps=30)
    assert run.global_step < 30 and data.round == 3
    playing = RolloutCollection(episodes=6, slots=4, stop_fallen=False)
    ends = fit(PPO(pretrained=bc_run, critic="shared"), rounds(), tmp_path / "goes on", steps=12, playing=playing)
    assert ends.global_step == 12
