"""What ``lmrl fit`` says: names of classes in short, lines of progress, the end, how to resume after a signal."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from lightning.fabric.accelerators.mps import MPSAccelerator as FabricsMPS
from lightning.pytorch.accelerators import MPSAccelerator

import lmrl
from lmrl.cli import main
from lmrl.data import generate
from lmrl.errors import UserError
from tests.helpers.online import ENV, TINY
from tests.helpers.ranks import on_ranks


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ``short.yaml``: BC in the maze for four steps."""
    monkeypatch.chdir(tmp_path)
    generate("maze_fo", 20, 0, Path("maze.parquet"), progress=False)
    playing = {"task": "maze_fo", "every_n_steps": 2, "episodes": 2, "env": ENV, "decoding": {"max_new_tokens": 1}}
    config = {
        "model": {"class_path": "BC", "init_args": {"architecture": TINY}},
        "data": {"class_path": "MazeDataModule", "init_args": {"path": "maze.parquet", "batch_size": 8}},
        "trainer": {
            "max_steps": 4,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_model_summary": False,
            "default_root_dir": "runs/maze_fo/bc",
            "callbacks": [
                {"class_path": "InteractiveEvaluation", "init_args": playing},
                {"class_path": "KeepLast"},
            ],
        },
    }
    Path("short.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_a_training_says_where_it_is_and_what_it_came_to(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", "short.yaml"]) == 0
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert all(line.startswith("step ") for line in lines), said.err  # no library says anything
    assert lines[-1].startswith("step 4/4, loss ")
    assert (found := re.search(r", return (-[\d.]+), ", lines[-1]))
    assert said.out.splitlines() == [
        f"trained 4 steps; best return {found[1]} (step 2)",
        "the run is in runs/maze_fo/bc",
        "next: lmrl evaluate --policy runs/maze_fo/bc",
    ]
    assert main(["fit", "--config", "short.yaml", "--ckpt_path", "runs/maze_fo/bc/last.ckpt"]) == 0
    assert capsys.readouterr().out.startswith("nothing was left to train: 4 steps are done")


def test_resume_goes_on_where_there_is_a_checkpoint(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fit", "--config", "short.yaml", "--resume"]
    assert main([*words, "--trainer.max_steps=2"]) == 0
    said = capsys.readouterr()
    assert "note: there is no runs/maze_fo/bc/last.ckpt to resume from: a new run begins\n" in said.err
    assert "trained 2 steps" in said.out
    assert main(words) == 0
    assert capsys.readouterr().err.splitlines()[-1].startswith("step 4/4")
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("nothing was left to train: 4 steps are done")
    assert main([*words, "--overwrite"]) == 2
    assert "leave out --ckpt_path and --overwrite" in capsys.readouterr().err


def test_a_run_that_was_killed_before_its_first_last_checkpoint_resumes_from_its_best(
    short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fit", "--config", "short.yaml", "--resume"]
    run = short / "runs" / "maze_fo" / "bc"
    assert main([*words, "--trainer.max_steps=2"]) == 0
    (run / "last.ckpt").unlink()
    shutil.rmtree(run / "last")
    capsys.readouterr()
    assert main(words) == 0
    said = capsys.readouterr()
    assert "resuming at step 2" in said.err and "trained 4 steps" in said.out
    for left in ("last.ckpt", "best.ckpt"):  # what a kill within the first evaluation leaves
        (run / left).unlink()
    (run / "evaluation").mkdir()
    assert main(words) == 2, "a run that was evaluated is not begun anew"
    (run / "evaluation").rmdir()
    assert main(words) == 0
    assert (run.parent / ".earlier" / "bc-1" / "best").is_dir()
    (run / "last.ckpt").unlink()
    assert main(words) == 0, "of a run that was killed before it saved its end the best checkpoint is there"
    assert (run / "last.ckpt").is_file()


def test_a_run_with_any_seed_resumes(short: Path) -> None:
    words = ["fit", "--config", "short.yaml", "--seed_everything=true", "--resume"]
    assert main([*words, "--trainer.max_steps=2"]) == 0
    assert main(words) == 0


def test_resume_begins_anew_where_a_run_was_killed_before_its_first_checkpoint(
    short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = short / "runs" / "maze_fo" / "bc"
    run.mkdir(parents=True)
    (run / "metrics.csv").write_text("step,train/loss\n0,1.0\n")
    assert main(["fit", "--config", "short.yaml", "--resume"]) == 0
    assert "trained 4 steps" in capsys.readouterr().out
    assert (run.parent / ".earlier" / "bc-1" / "metrics.csv").is_file()


def test_a_refused_resume_leaves_the_configuration_of_the_run(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = short / "runs" / "maze_fo" / "bc" / "config.yaml"
    assert main(["fit", "--config", "short.yaml", "--trainer.max_steps=2"]) == 0
    before = config.read_text()
    assert main(["fit", "--config", "short.yaml", "--resume", "--data.init_args.batch_size=4"]) == 2
    assert "--config RUN/config.yaml --resume" in capsys.readouterr().err
    for name, value in (
        ("seed_everything", 9),
        ("trainer.accumulate_grad_batches", 2),
        ("trainer.gradient_clip_val", 0.5),
    ):
        assert main(["fit", "--config", "short.yaml", "--resume", f"--{name}={value}"]) == 2
        assert f"not {value}: resume it as it was" in capsys.readouterr().err
    assert config.read_text() == before
    assert main(["fit", "--config", str(config), "--resume", "--trainer.max_steps=3"]) == 0
    assert "max_steps: 3" in config.read_text()


def test_a_run_resumes_from_its_own_start(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The configuration names a start that is not there, and the run began with that of an option."""
    words = ["fit", "--config", "short.yaml", "--trainer.max_steps=2"]
    assert main([*words, "--trainer.default_root_dir=start"]) == 0
    own = "--model.init_args.pretrained=start"
    words += ["--model.init_args.architecture=null", "--resume"]
    assert main([*words, own]) == 0
    capsys.readouterr()
    assert main([*words, "--model.init_args.pretrained=runs/wordle/bc", "--trainer.max_steps=3"]) == 2
    assert capsys.readouterr().err == (
        "error: runs/maze_fo/bc began from start, and there is no runs/wordle/bc: repeat the options of the run, or "
        "resume it with --config runs/maze_fo/bc/config.yaml --resume\n"
    )
    assert main([*words, own, "--trainer.max_steps=3"]) == 0


def test_the_next_command_of_a_class_of_ones_own_names_its_module(
    short: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (short / "my_algorithms.py").write_text("from lmrl.modules import BC\n\n\nclass Mine(BC):\n    name = 'mine'\n")
    monkeypatch.syspath_prepend(str(short))
    monkeypatch.setenv("PYTHONPATH", "my folder")
    monkeypatch.setenv("LMRL_MODULES", "json")
    assert main(["fit", "--config", "short.yaml", "--model.class_path=my_algorithms.Mine"]) == 0
    following = capsys.readouterr().out.splitlines()[-1]
    assert following == (
        "next: PYTHONPATH='my folder' LMRL_MODULES=json,my_algorithms lmrl evaluate --policy runs/maze_fo/bc"
    )


def test_the_gpu_of_a_mac_is_not_taken(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no float64. Lightning would take it."""
    for place in (torch.backends.mps, MPSAccelerator, FabricsMPS):
        monkeypatch.setattr(place, "is_available", lambda: True)
    assert main(["fit", "--config", "short.yaml", "--trainer.accelerator=auto"]) == 0


def test_the_gpu_of_a_mac_is_refused(short: Path) -> None:
    module = lmrl.modules.BC(architecture=TINY)
    module.trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("mps")))  # type: ignore[assignment]
    with pytest.raises(UserError, match="cannot compute in float64"):
        module.setup("fit")


def test_a_run_without_a_bar_is_silent(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", "short.yaml", "--trainer.enable_progress_bar=false"]) == 0
    assert "step 4/4" not in capsys.readouterr().err


def log_offline(words: list[str]) -> dict[str, float]:
    """Train with a logger of Weights & Biases, which keeps its settings for the life of a process."""
    import wandb

    os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
    assert main(["fit", *words]) == 0
    run = wandb.run
    logged = {name: float(run.summary[name]) for name in ("train/loss", "trainer/global_step")}
    logged["lr"] = float(run.config["lr"])
    run.finish()
    return logged


@pytest.mark.slow
def test_a_run_is_logged_to_weights_and_biases_offline(short: Path) -> None:
    words = ["--config", "short.yaml", "--config", "configs/logger/wandb.yaml", "--model.init_args.lr=0.25"]
    (logged,) = on_ranks(log_offline, [*words, "--trainer.log_every_n_steps=1", "--trainer.max_steps=2"], world=1)
    assert logged["train/loss"] > 0.0
    assert (logged["trainer/global_step"], logged["lr"]) == (1.0, 0.25)
    (file,) = (short / "runs" / "maze_fo" / "bc").glob("wandb/offline-run-*/*.wandb")
    assert file.stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "model", "data"),
    [
        ("--model ILQL", "lmrl.modules.ILQL", "lmrl.datamodules.MazeDataModule"),
        ("--model=FilteredBC --data WordleData", "lmrl.modules.FilteredBC", "lmrl.datamodules.WordleDataModule"),
        ("--data=OnlineDataModule --data.task=maze_po", "lmrl.modules.BC", "lmrl.datamodules.OnlineDataModule"),
    ],
)
def test_classes_may_be_named_in_short(
    short: Path, words: str, model: str, data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", "--config", "short.yaml", *words.split(), "--print_config"]) == 0
    kept = yaml.safe_load(capsys.readouterr().out)
    assert (kept["model"]["class_path"], kept["data"]["class_path"]) == (model, data)


@pytest.mark.parametrize("words", [["--model.help", "ILQL"], ["--data.help=MazeData"]])
def test_help_of_a_class_named_in_short(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", *words]) == 0
    assert ("--model.expectile" if "ILQL" in words else "--data.consecutive") in capsys.readouterr().out


SMALL = {
    "model.init_args.architecture": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 512},
    "trainer.max_steps": 2,
    "trainer.accelerator": "cpu",
    "trainer.enable_progress_bar": False,
    "evaluation.episodes": 1,
}


def test_it_is_the_command(data_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {**SMALL, "data.init_args.path": data_path, "trainer.default_root_dir": tmp_path / "run"}
    run = lmrl.fit("configs/maze_fo/bc.yaml", "configs/scale/cpu.yaml", **options)
    assert run == tmp_path / "run" and (run / "last.ckpt").is_file()
    assert "lmrl evaluate" in capsys.readouterr().out
    assert lmrl.evaluate(run, episodes=1).task == "maze_fo"
    for overwrite in (False, None):
        with pytest.raises(UserError, match="holds a run"):
            lmrl.fit("configs/maze_fo/bc.yaml", **options, overwrite=overwrite)
    lmrl.fit("configs/maze_fo/bc.yaml", **options, overwrite=True)
    assert (tmp_path / ".earlier" / "run-1").is_dir()


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        ("configs/maze_fo/bd.yaml", {}, "known: configs/maze_fo/"),
        ("configs/maze_fo/bc.yaml", {"model.init_args.lr": -1.0}, "lr must be"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    config: str, options: dict[str, object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said):
        lmrl.fit(config, **options)


def test_it_needs_something_to_train() -> None:
    with pytest.raises(UserError, match="nothing to train"):
        lmrl.fit()


# Runs the command. Each process writes a file when an evaluation begins, and its exit code into another one.
DRIVER = """
import os, sys
from lmrl.callbacks import interactive
from lmrl.cli import main
evaluate = interactive.evaluate
def noted(*args, **options):
    open("evaluating", "w").close()
    return evaluate(*args, **options)
interactive.evaluate = noted
if __name__ == "__main__":
    code = main()
    with open("rank" + os.environ.get("LOCAL_RANK", "0"), "w") as file:
        file.write(str(code))
    sys.exit(code)
"""


def wait_until(ready: Callable[[], bool], seconds: float, process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end and process.poll() is None, Path("stderr").read_text()
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that has ended stays in the list until its parent asks for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture
def three_ranks(short: Path) -> Any:
    """Begin a run of three processes, and return the first one and the numbers of the others."""
    begun = []

    def begin(ready: Callable[[], bool], episodes: int = 2) -> tuple["subprocess.Popen[str]", list[int]]:
        config = yaml.safe_load(Path("short.yaml").read_text())
        config["trainer"] |= {"max_steps": 1_000_000, "max_time": "00:00:05:00", "devices": 3, "strategy": "ddp"}
        playing, keeping = config["trainer"]["callbacks"]
        playing["init_args"] |= {"every_n_steps": 3, "episodes": episodes}
        keeping["init_args"] = {"every_n_steps": 1_000_000}
        progress = {"class_path": "TrainingProgress", "init_args": {"seconds": 0.1}}
        config["trainer"]["callbacks"].append(progress)
        Path("short.yaml").write_text(yaml.safe_dump(config))
        Path("driver.py").write_text(DRIVER)
        command = [sys.executable, "driver.py", "fit", "--config", "short.yaml"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        with open("stderr", "w") as file:
            first = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True,
                start_new_session=True,
            )  # fmt: skip
        begun.append(first)
        wait_until(ready, 240, first)
        return first, [int(pid) for pid in Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()]

    yield begin
    for first in begun:
        if first.poll() is None or any(map(is_alive, _group(first.pid))):
            os.killpg(first.pid, signal.SIGKILL)
        first.wait()


def _group(leader: int) -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if is_alive(pid) and os.getpgid(pid) == leader]


def check_ended(first: "subprocess.Popen[str]", others: list[int], how: signal.Signals, argv: str) -> None:
    code, told = {signal.SIGTERM: (143, "terminated"), signal.SIGINT: (130, "interrupted")}[how]
    # It takes a few seconds where nothing else runs; a hang would be for ever.
    assert first.wait(timeout=90) == code, Path("stderr").read_text()
    assert not any(map(is_alive, others))
    assert [Path(f"rank{rank}").read_text() for rank in range(3)] == [str(code)] * 3
    progress = ("step ", "playing ", "warning: ")
    lines = [line for line in Path("stderr").read_text().splitlines() if not line.startswith(progress)]
    assert len(lines) == 1 and re.fullmatch(
        rf"{told} at step \d+; resume with: lmrl {argv} --ckpt_path=runs/maze_fo/bc/last.ckpt", lines[0]
    ), lines
    assert Path("runs/maze_fo/bc/last.ckpt").is_file() and not Path("runs/maze_fo/bc/.last.ckpt.new").exists()


#: Which signal reaches which of three processes. Each case takes half a minute of a core.
SIGNALS = [
    pytest.param(signal.SIGINT, "group", marks=pytest.mark.nightly),
    pytest.param(signal.SIGINT, "first", marks=pytest.mark.nightly),
    pytest.param(signal.SIGINT, "other", marks=pytest.mark.nightly),
    pytest.param(signal.SIGTERM, "group", marks=pytest.mark.nightly),
    pytest.param(signal.SIGTERM, "first", marks=pytest.mark.nightly),
    pytest.param(signal.SIGTERM, "other", marks=pytest.mark.nightly),
]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks for processes where Linux lists them")
@pytest.mark.parametrize(("how", "whom"), SIGNALS)
def test_processes_that_train_together_end_together(three_ranks: Any, how: signal.Signals, whom: str) -> None:
    first, others = three_ranks(Path("runs/maze_fo/bc/best.ckpt").is_file)
    assert len(others) == 2
    if whom == "group":
        os.killpg(first.pid, how)
    else:
        os.kill(first.pid if whom == "first" else others[1], how)
    check_ended(first, others, how, "fit --config short.yaml")


@pytest.mark.nightly
def test_ctrl_c_ends_an_evaluation_of_several_processes(three_ranks: Any) -> None:
    first, others = three_ranks(Path("evaluating").is_file, episodes=100_000)
    time.sleep(3.0)
    assert not Path("runs/maze_fo/bc/best.ckpt").exists()  # it still plays
    os.killpg(first.pid, signal.SIGINT)
    check_ended(first, others, signal.SIGINT, "fit --config short.yaml")


@pytest.mark.nightly
def test_the_other_processes_end_with_a_first_one_that_is_killed(three_ranks: Any) -> None:
    first, others = three_ranks(Path("runs/maze_fo/bc/best.ckpt").is_file)
    first.kill()
    first.wait()
    end = time.monotonic() + 90
    while any(map(is_alive, others)):
        assert time.monotonic() < end
        time.sleep(0.1)
