"""Evaluation while training: what is logged, when, and which checkpoint is kept."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lmrl.callbacks import InteractiveEvaluation, KeepLast
from lmrl.data import generate
from lmrl.datamodules import MazeDataModule
from lmrl.errors import UserError
from lmrl.evaluation import Evaluation, evaluate
from lmrl.modules import BC
from lmrl.policies import LMPolicy
from lmrl.types import Reply, Request


class Walker:
    """Goes down with every step of training that was good, and up otherwise."""

    def __init__(self, good: bool) -> None:
        self.move = "move down\n" if good else "nonsense"

    def act(self, requests: list[Request]) -> list[Reply]:
        return [Reply(self.move) for _ in requests]


class Scripted(BC):
    """Plays well after two steps only."""

    good_step = 2

    def policy(self, **settings: Any) -> LMPolicy:
        return Walker(self.trainer.global_step == self.good_step)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def data_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate("maze_fo", 20, 0, tmp_path_factory.mktemp("data") / "maze.parquet", progress=False)


def fit(
    root: Path,
    data_path: Path,
    steps: int,
    callbacks: Sequence[L.Callback] = (),
    accumulate: int = 1,
    max_epochs: int | None = None,
    every_n_steps: int = 2,
    **more: Any,
) -> InteractiveEvaluation:
    torch.manual_seed(0)
    playing = InteractiveEvaluation("maze_fo", every_n_steps=every_n_steps, episodes=25)
    logger = CSVLogger(root, name="", version="")
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = L.Trainer(
        max_steps=steps,
        max_epochs=max_epochs,
        logger=logger,
        accelerator="cpu",
        default_root_dir=root,
        callbacks=[*callbacks, playing, KeepLast()],
        accumulate_grad_batches=accumulate,
        **quiet,
    )
    module = Scripted(architecture={"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128})
    trainer.fit(module, MazeDataModule("maze_fo", path=str(data_path), batch_size=16, val_fraction=0.1), **more)
    return playing


def evaluated(root: Path) -> list[int]:
    """The steps at which a run was evaluated."""
    with (root / "metrics.csv").open() as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row.get("eval/maze_fo/return_mean")]


def test_the_best_by_return_is_kept_and_the_last_too(data_path: Path, tmp_path: Path) -> None:
    playing = fit(tmp_path, data_path, steps=5)
    assert torch.load(tmp_path / "best.ckpt", weights_only=True)["global_step"] == 2
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 5
    assert playing.best > -110
    with (tmp_path / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("eval/maze_fo/return_mean")]
    assert [int(row["step"]) for row in rows] == [2, 4, 5]  # every two steps, and the last
    for row, illegal in zip(rows, (0.0, 1.0, 1.0), strict=True):
        assert float(row["eval/maze_fo/illegal_rate"]) == illegal
        low, mean, high = (float(row[f"eval/maze_fo/return_{name}"]) for name in ("ci_low", "mean", "ci_high"))
        assert low <= mean <= high
        assert (mean == -401.0) == bool(illegal)


def test_the_last_policy_is_evaluated_however_a_run_ends(data_path: Path, tmp_path: Path) -> None:
    class Stop(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
            trainer.should_stop = trainer.global_step >= 3

    fit(tmp_path, data_path, steps=10, callbacks=[Stop()])
    assert evaluated(tmp_path) == [2, 3]


def test_it_says_how_far_it_is(data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("lmrl.callbacks.interactive.say", lambda trainer, what: said.append(what))
    fit(tmp_path, data_path, steps=2)
    ended = [int(line.split(": ")[1].split()[0]) for line in said]
    turns = [int(line.split(", ")[1].split()[0].replace(",", "")) for line in said]
    assert said[0] == "playing 25 episodes: 0 ended, 25 turns"
    assert ended == sorted(ended) and 0 < ended[-1] <= 25
    assert turns == sorted(turns) and turns[-1] > 25


def test_no_checkpoint_is_chosen_by_what_is_reported(
    data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = []

    def spying(*args: Any, **kwargs: Any) -> Evaluation:
        played.append(evaluate(*args, **kwargs))
        return played[-1]

    monkeypatch.setattr("lmrl.callbacks.interactive.evaluate", spying)
    playing = fit(tmp_path, data_path, steps=2)
    reported = evaluate(Walker(good=True), "maze_fo", 25, playing.seed)
    (chosen,) = played
    assert not {e.seed for e in chosen.episodes} & {e.seed for e in reported.episodes}


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_a_resumed_run_does_not_overwrite_a_better_best(data_path: Path, tmp_path: Path) -> None:
    fit(tmp_path, data_path, steps=3)
    fit(tmp_path, data_path, steps=5, ckpt_path=str(tmp_path / "last.ckpt"), weights_only=True)
    assert torch.load(tmp_path / "best.ckpt", weights_only=True)["global_step"] == 2
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == 5


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_a_run_that_is_resumed_in_mid_step_is_not_evaluated_again(data_path: Path, tmp_path: Path) -> None:
    fit(tmp_path, data_path, steps=2, accumulate=2)
    fit(tmp_path, data_path, steps=4, accumulate=2, ckpt_path=str(tmp_path / "last.ckpt"), weights_only=True)
    assert evaluated(tmp_path) == [4]  # not the second step, at which it was resumed


def rows_of(root: Path) -> list[dict[str, str]]:
    """What evaluations have logged, without times."""
    with (root / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("eval/maze_fo/return_mean")]
    return [{k: v for k, v in row.items() if k == "step" or k.startswith("eval/")} for row in rows]


def interrupt(monkeypatch: pytest.MonkeyPatch, root: Path, *args: Any, **more: Any) -> None:
    """Train until Ctrl-C in the first evaluation."""

    def interrupted(*given: Any, **settings: Any) -> Evaluation:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, SystemExit)):
        patch.setattr("lmrl.callbacks.interactive.evaluate", interrupted)
        fit(root, *args, **more)


def state_in(checkpoint: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """All of a checkpoint, and the state of the evaluations in it."""
    saved = torch.load(checkpoint, weights_only=True)
    return saved, next(part for name, part in saved["callbacks"].items() if "InteractiveEvaluation" in name)


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
@pytest.mark.parametrize(("steps", "again", "good_step"), [(5, 1, 2), (5, 2, 4), (2, 1, 2)])
def test_an_interrupted_evaluation_is_made_up_for(
    steps: int, again: int, good_step: int, data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a run and at its last step, where none is left to train; interrupted once or twice."""
    monkeypatch.setattr(Scripted, "good_step", good_step)
    whole = tmp_path / "whole"
    root = tmp_path / "again"
    fit(whole, data_path, steps)
    interrupt(monkeypatch, root, data_path, steps)
    assert not (root / "best.ckpt").exists()
    more = {"ckpt_path": str(root / "last.ckpt"), "weights_only": True}
    if again == 2:
        interrupt(monkeypatch, root, data_path, steps, **more)
    fit(root, data_path, steps, **more)
    assert rows_of(root) == rows_of(whole)
    manifests = [json.loads((run / "best" / "lmrl.json").read_text()) for run in (root, whole)]
    assert manifests[0]["made_with"] == manifests[1]["made_with"]
    for name in ("best.ckpt", "last.ckpt"):
        (saved, state), (expected, other) = state_in(root / name), state_in(whole / name)
        assert {**state, "seconds": 0} == {**other, "seconds": 0}
        assert saved["global_step"] == expected["global_step"]
        if name == "best.ckpt":  # the last one may be from before the end of the epoch
            assert str(saved["loops"]) == str(expected["loops"])
        assert str(saved["MazeDataModule"]) == str(expected["MazeDataModule"])
        for key, tensor in expected["state_dict"].items():
            assert torch.equal(tensor, saved["state_dict"][key]), key
    fit(root, data_path, steps, **more)  # the logger begins a new file, to which nothing is added
    assert not (root / "metrics.csv").exists()


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_the_interrupted_evaluation_of_a_run_that_ends_by_epochs_is_made_up_for(
    data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {"max_epochs": 1, "every_n_steps": 1000}
    fit(tmp_path / "whole", data_path, -1, **ends)
    interrupt(monkeypatch, tmp_path / "again", data_path, -1, **ends)
    more = {"ckpt_path": str(tmp_path / "again" / "last.ckpt"), "weights_only": True}
    fit(tmp_path / "again", data_path, -1, **ends, **more)
    assert len(rows_of(tmp_path / "whole")) == 1
    assert rows_of(tmp_path / "again") == rows_of(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_a_checkpoint_from_before_evaluations_were_noted_is_not_evaluated_again(
    data_path: Path, tmp_path: Path
) -> None:
    fit(tmp_path, data_path, 2)
    saved, state = state_in(tmp_path / "last.ckpt")
    del state["last_evaluated_step"]
    torch.save(saved, tmp_path / "last.ckpt")
    for steps, expected in ((2, []), (4, [4])):
        fit(tmp_path / str(steps), data_path, steps, ckpt_path=str(tmp_path / "last.ckpt"))
        file = tmp_path / str(steps) / "metrics.csv"
        assert (evaluated(file.parent) if file.exists() else []) == expected


def test_time_goes_on_where_a_run_does(data_path: Path, tmp_path: Path) -> None:
    """Seconds of training, of all processes of a run, without those of playing."""
    fit(tmp_path, data_path, 2)
    saved = torch.load(tmp_path / "last.ckpt", weights_only=True)
    state = next(part for name, part in saved["callbacks"].items() if "InteractiveEvaluation" in name)
    assert state["seconds"] > 0
    state["seconds"] = 1000.0
    torch.save(saved, tmp_path / "last.ckpt")
    fit(tmp_path / "again", data_path, 4, ckpt_path=str(tmp_path / "last.ckpt"))
    rows = list(csv.DictReader((tmp_path / "again" / "metrics.csv").open()))
    (seconds,) = (float(row["time/train_seconds"]) for row in rows if row["time/train_seconds"])
    assert 1000 < seconds < 1100


def test_time_spent_playing_is_no_time_of_training(
    data_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if every evaluation took a thousand seconds."""
    played: list[int] = []

    def slow(*given: Any, **settings: Any) -> Evaluation:
        played.append(1)
        return evaluate(*given, **settings)

    monkeypatch.setattr("lmrl.callbacks.interactive.evaluate", slow)
    monkeypatch.setattr("lmrl.callbacks.interactive.perf_counter", lambda: perf_counter() + 1000 * len(played))
    fit(tmp_path, data_path, 4)
    rows = list(csv.DictReader((tmp_path / "metrics.csv").open()))
    assert [float(row["time/train_seconds"]) < 100 for row in rows if row["time/train_seconds"]] == [True, True]
    for checkpoint in ("best.ckpt", "last.ckpt"):  # the best one is written in the middle of an evaluation
        saved = torch.load(tmp_path / checkpoint, weights_only=True)
        state = next(part for name, part in saved["callbacks"].items() if "InteractiveEvaluation" in name)
        assert 0 < state["seconds"] < 100


@pytest.mark.parametrize("name", ["every_n_steps", "episodes", "slots"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} must be at least 1, got 0"):
        InteractiveEvaluation("maze_fo", **{name: 0})


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(UserError, match="unknown task 'maze'"):
        InteractiveEvaluation("maze")


def test_a_setting_that_the_policy_does_not_take_is_refused_before_the_first_step(
    tmp_path: Path, data_path: Path
) -> None:
    playing = InteractiveEvaluation("maze_fo", decoding={"betta": 3})
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = L.Trainer(max_steps=5, accelerator="cpu", default_root_dir=tmp_path, callbacks=[playing], **quiet)
    with pytest.raises(UserError, match="decoding: the policy of BC does not take all of max_new_tokens, betta"):
        trainer.fit(BC(architecture={"n_embd": 16, "n_layer": 1, "n_head": 2}), MazeDataModule(path=str(data_path)))
    assert trainer.global_step == 0
