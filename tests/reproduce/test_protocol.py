"""Tests of what the protocol makes equal, by its plan and by the records of the table."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lmrl.errors import UserError
from lmrl.evaluation.result_json import write_json
from lmrl.reproduce import Order, protocol, shortened
from lmrl.reproduce.plan import PRESETS, Cell, is_done, plan
from lmrl.utils.configuration import configuration, value_at

PROTOCOL = PRESETS["protocol"]


def cells_of(task: str, *algorithms: str, seed: int = 0, runs: Path = PROTOCOL.runs) -> dict[str, Cell]:
    order = Order(tasks=[task], algorithms=algorithms, runs=runs, seeds=[seed], preset=PROTOCOL)
    return {cell.algorithm: cell for cell in plan(order) if cell.fit}


@pytest.mark.parametrize("task", protocol.rows())
def test_all_methods_of_a_row_have_one_start_one_budget_and_one_optimizer(task: str) -> None:
    cells = cells_of(task, seed=1)
    start = cells.pop(protocol.START)
    assert start.fit is not None
    shared = set()
    for cell in cells.values():
        assert cell.fit is not None
        config = configuration(cell.fit.words)
        from_start = value_at(config, "model.init_args.pretrained")
        assert "_from_" in cell.algorithm or from_start == start.folder.as_posix()
        shared.add(
            (
                value_at(config, "compute.tflop"),
                str(value_at(config, "compute.save_at")),
                value_at(config, "trainer.max_steps"),
                value_at(config, "model.init_args.optimizer"),
                value_at(config, "model.init_args.lr_schedule"),
                value_at(config, "model.init_args.warmup_steps"),
            )
        )
        for callback in value_at(config, "trainer.callbacks"):
            # A fallen run that stops early would spend less than its budget.
            assert callback.get("init_args", {}).get("stop_fallen") in (None, False)
    assert len(shared) == 1
    assert value_at(configuration(start.fit.words), "compute.tflop") is None


def test_all_methods_try_as_many_settings_and_are_scored_at_three_points() -> None:
    for algorithm in protocol.methods("twenty_questions"):
        tried = protocol.settings_tried(algorithm)
        betas = len(tried.get("betas", (None,)))
        cut = [value for value in tried["top_ps"] if value < 1]
        assert (len(tried["temperatures"]) + len(cut)) * betas == 12
    steps = cells_of("wordle", "grpo")["grpo"].steps
    assert [step.name for step in steps] == [
        "fit", "evaluate", "tune", "evaluate_tuned",
        "evaluate_at_25", "select_at_25", "evaluate_at_50", "select_at_50", "select_end",
    ]  # fmt: skip
    # All three policies are compared on the same games, which have chosen no decoding.
    selections = [step.words for step in steps if step.name.startswith("select_")]
    assert all(words[words.index("--seed") + 1] == "1" and "--selection" in words for words in selections)
    assert "runs/protocol/wordle/grpo/at_25" in steps[4].words and "--tuned" in steps[4].words


def test_trained_policies_play_on_the_device() -> None:
    preset = replace(PROTOCOL, device="cuda")
    (cell,) = [
        cell for cell in plan(Order(["wordle"], ["grpo"], PROTOCOL.runs, preset=preset)) if cell.name == "wordle/grpo"
    ]
    for step in cell.steps:
        assert step.name == "fit" or step.words[step.words.index("--device") + 1] == "cuda", step.name


def test_methods_whose_settings_no_trial_has_chosen_are_named() -> None:
    assert protocol.methods_without_trials("car_dealer", []) == []
    assert protocol.methods_without_trials("maze_po", ["bc", "grpo", "ppo_from_filtered_bc"]) == ["grpo", "ppo"]


def test_the_best_policy_on_selection_games_is_scored_of_equals_the_latest() -> None:
    assert protocol.chosen_policy({"at_25": 2.0, "at_50": 1.0, "end": 1.5}) == "at_25"
    assert protocol.chosen_policy({"at_25": 1.0, "at_50": 2.0, "end": 1.5}) == "at_50"
    assert protocol.chosen_policy({"at_25": 2.0, "at_50": 2.0, "end": 1.5}) == "at_50"
    assert protocol.chosen_policy({"at_25": 2.0, "at_50": 2.0, "end": 2.0}) == "end"


def test_a_choice_among_policies_of_which_one_was_not_played_is_refused() -> None:
    with pytest.raises(UserError, match="selection games of at_50, end"):
        protocol.chosen_policy({"at_25": 2.0})


def test_a_step_is_done_only_if_its_outcome_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cell = cells_of("wordle", "grpo")["grpo"]
    timing = {step.name: {"recipe": step.recipe, "seconds": 1.0} for step in cell.steps}
    write_json(timing, cell.folder / "timing.json")
    steps = {step.name: step for step in cell.steps}
    for name, file in (("tune", "tuned.json"), ("select_at_25", "selection_at_25/scores.json")):
        assert not is_done(cell, steps[name])
        write_json({"settings": {"temperature": 1.0}, "return_mean": 1.0}, cell.folder / file)
        assert is_done(cell, steps[name])
    # Settings of other weights are no outcome.
    torch.save({"lmrl": {"made_with": {"weights": "two"}}}, cell.folder / "last.ckpt")
    write_json({"settings": {"temperature": 1.0}, "weights": "one"}, cell.folder / "tuned.json")
    assert not is_done(cell, steps["tune"])


def test_a_smoke_test_ends_after_a_step_and_keeps_all_policies() -> None:
    order = Order(["wordle"], ["grpo"], PROTOCOL.runs, preset=PROTOCOL)
    cell = {cell.algorithm: cell for cell in plan(shortened(order))}["grpo"]
    assert cell.fit is not None
    assert value_at(configuration(cell.fit.words), "compute.tflop") < 1e-6


def test_other_tasks_are_no_rows() -> None:
    with pytest.raises(UserError, match="row of the protocol"):
        cells_of("maze_fo", "grpo")


def test_the_second_arm_starts_from_filtered_bc() -> None:
    for runs in (PROTOCOL.runs, Path("runs")):
        cells = cells_of("twenty_questions", "grpo_from_filtered_bc", runs=runs)
        assert [*cells] == ["bc", "filtered_bc", "grpo_from_filtered_bc"]
        arm = cells["grpo_from_filtered_bc"]
        assert arm.after == "twenty_questions/filtered_bc" and arm.fit is not None
        words = configuration(arm.fit.words)
        assert value_at(words, "model.init_args.pretrained") == f"{runs}/twenty_questions/filtered_bc"
        assert value_at(words, "model.class_path") == "lmrl.modules.GRPO"
