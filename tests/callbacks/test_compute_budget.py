"""A training ends when its compute is used up: counted by hand, in rounds, after a resume, in micro-batches."""

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch import Callback

from lmrl.callbacks import ComputeBudget, KeepLast, RolloutCollection
from lmrl.datamodules import OfflineDataModule
from lmrl.errors import UserError
from lmrl.evaluation import evaluate
from lmrl.models.lm import trunk_of
from lmrl.modules import BC, GRPO, ILQL, PPO, GuidedPPO
from lmrl.training.flops import lm_cost, playing_cost, trunk_cost
from tests.helpers.online import TINY, fit, rounds, trainer

pytestmark = pytest.mark.filterwarnings("ignore:(round [0-9]+. |all advantages|Experiment logs directory)")
SETTINGS: dict[str, Any] = {"lr": 1e-3, "lr_schedule": "constant", "warmup_steps": 0}


class Steps(Callback):
    """Notes what each batch costs."""

    def __init__(self) -> None:
        self.costs: list[int] = []

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, *_: Any) -> None:
        self.costs.append(lm_cost(pl_module.model).of_batch(batch))


class Rounds(RolloutCollection):
    """Notes what was read and said in each round, counted by the ids of the episodes."""

    def __init__(self, is_read_again: bool = False) -> None:
        super().__init__(episodes=6, slots=4, group_size=3)
        self.is_read_again = is_read_again
        self.costs: list[int] = []

    def collect(self, number: int) -> Any:
        episodes = super().collect(number)
        encoder = self._data._encoder()
        cost = self._module.round_cost() if self.is_read_again else playing_cost(self._module.model)
        total = 0
        for episode in episodes:
            # The policy of this maze reads the last observation alone.
            for observation, action in zip(episode.observations[:-1], episode.action_ids, strict=True):
                read = len(encoder.encode(observation)) + len(action)
                total += read * cost.per_id + read**2 * cost.per_pair + len(action) * cost.per_state
        self.costs.append(total)
        return episodes


def imitated(root: Path, data_path: Path, budget: ComputeBudget, noting: Steps, **settings: Any) -> L.Trainer:
    data = OfflineDataModule("maze_fo", path=str(data_path), batch_size=8, val_fraction=0.0)
    run = trainer(root, 10_000, [budget, noting, KeepLast(5)], **settings)
    run.fit(BC(architecture=TINY, **SETTINGS), data)
    return run


@pytest.mark.parametrize("accumulated", [1, 2])
def test_an_offline_run_ends_at_the_last_step_that_fits(
    accumulated: int, data_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Steps()
    imitated(tmp_path / "one", data_path, ComputeBudget(1e-9), first)
    assert len(first.costs) == 1, "a budget that is too small ends after a step"
    tflop = 12.5 * first.costs[0] / 1e12
    budget = ComputeBudget(tflop)
    noting = Steps()
    run = imitated(tmp_path / "more", data_path, budget, noting, accumulate_grad_batches=accumulated)
    assert len(noting.costs) == accumulated * run.global_step
    assert f"TFLOP spent in {run.global_step} steps; the next step needs" in capsys.readouterr().out
    assert budget.spent == pytest.approx(sum(noting.costs))
    assert budget.spent <= 1.1 * tflop * 1e12
    assert budget.spent + 2 * sum(noting.costs[-accumulated:]) > tflop * 1e12


def test_a_budget_and_rounds_can_be_used_for_one_run_after_another(bc_run: str, tmp_path: Path) -> None:
    budget = ComputeBudget(1.0)
    data = rounds()
    spent = []
    for name in ("first", "second"):
        fit(GRPO(pretrained=bc_run, kl_weight=0.0, **SETTINGS), data, tmp_path / name, 6, [budget], Rounds())
        spent.append(budget.spent)
    assert spent[0] == spent[1] > 0.0


def test_rounds_count_and_a_resumed_run_goes_on(bc_run: str, tmp_path: Path) -> None:
    noting = Steps()
    playing = Rounds()
    budget = ComputeBudget(1.0)
    fit(GRPO(pretrained=bc_run, kl_weight=0.0, **SETTINGS), rounds(), tmp_path / "free", 12, [budget, noting], playing)
    assert len(playing.costs) > 1
    assert budget.spent == pytest.approx(sum(noting.costs) + sum(playing.costs))

    in_first_round = playing.costs[0] / 2 / (0.8 * budget.spent)

    def limited(name: str, steps: int, **more: Any) -> tuple[float, int]:
        ends = ComputeBudget(0.8 * budget.spent / 1e12, save_at=[in_first_round])
        module = GRPO(pretrained=bc_run, kl_weight=0.0, **SETTINGS)
        run = fit(module, rounds(), tmp_path / name, steps, [KeepLast(4), ends], Rounds(), **more)
        return ends.spent, run.global_step

    whole = limited("whole", 1_000)
    assert 4 < whole[1] < 12
    assert (tmp_path / "whole" / f"at_{round(100 * in_first_round)}").is_dir(), "a share that a round reached"
    # Such small rounds differ much in size.
    assert abs(whole[0] - 0.8 * budget.spent) < max(playing.costs) + 2 * max(noting.costs)
    limited("halves", 4)
    checkpoint = tmp_path / "halves" / "last.ckpt"
    assert limited("halves", 1_000, ckpt_path=checkpoint, weights_only=True) == whole
    ended = tmp_path / "whole" / "last.ckpt"
    assert limited("whole", 1_000, ckpt_path=ended, weights_only=True) == whole, "nothing was left to spend"


def test_a_run_ends_whose_every_step_is_the_end_of_a_round(bc_run: str, tmp_path: Path) -> None:
    """No micro-batch but the last one of a round completes a step."""

    def limited(name: str, tflop: float, steps: int, **more: Any) -> tuple[float, int, Any]:
        ends = ComputeBudget(tflop)
        module = GRPO(pretrained=bc_run, kl_weight=0.0, **SETTINGS)
        data = rounds(epochs=1)
        settings = {"accumulate_grad_batches": 100}
        run = fit(module, data, tmp_path / name, steps, [KeepLast(), ends], Rounds(), settings, **more)
        return ends.spent, run.global_step, module.model.state_dict()

    of_four, _, _ = limited("free", 1.0, 4)
    budget = 1.01 * of_four / 1e12
    spent, steps, weights = limited("whole", budget, 1_000)
    assert (spent, steps) == (of_four, 4)
    limited("halves", budget, 2)
    checkpoint = tmp_path / "halves" / "last.ckpt"
    spent, steps, resumed = limited("halves", budget, 1_000, ckpt_path=checkpoint, weights_only=True)
    assert (spent, steps) == (of_four, 4)
    for name, tensor in weights.items():
        assert torch.equal(resumed[name], tensor), name


def test_the_reference_model_and_a_penalty_cost_more(bc_run: str) -> None:
    free = GRPO(pretrained=bc_run, kl_weight=0.0).round_cost()
    penalised = GRPO(pretrained=bc_run, kl_weight=0.1).round_cost()
    assert penalised.per_id == 2 * free.per_id


def test_what_else_reads_a_round_costs_more(bc_run: str, tmp_path: Path) -> None:
    plain = PPO(pretrained=bc_run, kl_weight=0.0)
    own = PPO(pretrained=bc_run, kl_weight=0.0, critic="own", critic_passes=3)
    per_id = trunk_cost(trunk_of(plain.model), learns=False).per_id
    shared = PPO(pretrained=bc_run, kl_weight=0.0, critic="shared").round_cost()
    # A detached critic reads the hidden states of the policy. The trunk of the own one reads the round once, and learns
    # from it three times.
    assert plain.round_cost().per_id == shared.per_id + per_id
    assert own.round_cost().per_id == shared.per_id + per_id + 3 * 3 * per_id
    assert not any(parameter.requires_grad for parameter in own.critic.parameters())  # type: ignore[union-attr]

    values = ILQL(pretrained=bc_run)
    data = OfflineDataModule("maze_fo", size=20, batch_size=8, val_fraction=0.0)
    trainer(tmp_path / "ilql", 1, [KeepLast(1)]).fit(values, data)
    guided = GuidedPPO(pretrained=str(tmp_path / "ilql"), kl_weight=0.0)
    heads = 2 * sum(parameter.numel() for parameter in guided.q_heads.parameters() if parameter.ndim > 1)
    # The frozen model and the values play, and the critic reads the states of the values.
    assert guided.round_cost().per_id == 3 * per_id
    assert guided.round_cost().per_state == shared.per_state + heads


def test_a_round_that_is_scored_again_in_mixed_precision_costs_a_reading_more(bc_run: str, tmp_path: Path) -> None:
    plain = PPO(pretrained=bc_run, kl_weight=0.0, critic="shared")
    mixed = PPO(pretrained=bc_run, kl_weight=0.0, critic="shared")
    mixed.trainer = L.Trainer(accelerator="cpu", precision="bf16-mixed", logger=False, default_root_dir=tmp_path)
    reading = trunk_cost(trunk_of(plain.model), learns=False).per_id
    assert mixed.round_cost().per_id == plain.round_cost().per_id + reading


def test_rounds_in_which_the_policy_waits_do_not_count_as_the_last_one(bc_run: str, tmp_path: Path) -> None:
    """Two rounds are played before the first step, so the mean of both is expected of the next one."""
    budget = ComputeBudget(1.0)
    playing = Rounds(is_read_again=True)  # by the critic
    module = PPO(pretrained=bc_run, kl_weight=0.0, critic_warmup_rounds=1, **SETTINGS)
    fit(module, rounds(), tmp_path, 1, [budget], playing)
    assert len(playing.costs) == 2
    assert budget._last_round_operations == pytest.approx(sum(playing.costs) / 2)


def test_shares_of_the_budget_leave_folders_that_play(data_path: Path, tmp_path: Path) -> None:
    first = Steps()
    imitated(tmp_path / "one", data_path, ComputeBudget(1e-9), first)
    budget = ComputeBudget(8 * first.costs[0] / 1e12, save_at=[0.5, 0.25])
    imitated(tmp_path / "run", data_path, budget, Steps())
    for name in ("at_25", "at_50"):
        assert len(evaluate(tmp_path / "run" / name, "maze_fo", 2, env={"max_steps": 3}).episodes) == 2


def test_numbers_out_of_range_are_refused() -> None:
    for arguments in ({"tflop": 0.0}, {"tflop": 1.0, "save_at": [1.5]}):
        with pytest.raises(UserError, match=r"tflop|save_at"):
            ComputeBudget(**arguments)  # type: ignore[arg-type]
