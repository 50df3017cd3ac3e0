"""Commands that are killed at random moments, and two of them at once in one folder.

A case is a command on tiny models and data. First it runs undisturbed. Then it is killed (SIGKILL) at moments drawn
uniformly over the time that it took: everything in the folder must be readable, and the command, started again, must
leave what the undisturbed one left. It is also started twice in one folder: either one of the two is refused in one
line or both succeed, and the folder holds what a single command leaves.
"""

import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from lmrl.checkpoints.export import read_manifest
from lmrl.checkpoints.reading import weights_of
from lmrl.checkpoints.run_files import has_run
from lmrl.data.storage import read_episodes
from lmrl.errors import UserError
from lmrl.reproduce import Order, reproduce
from tests.fuzz import forked

KILLS = 20
PAIRS = 10
TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128, "initializer_range": 0.3}
ENV = {"max_steps": 4}

Facts = Mapping[str, Any]
"""What a finished command has left in a folder: the same after every run of it."""


class Case:
    """A command, what it leaves, and what must be true whenever it is killed."""

    words: Sequence[str]
    """After ``lmrl``."""
    function: Callable[[], int] | None = None
    """Called in the folder in place of the command; returns the exit code."""

    def facts(self, folder: Path) -> Facts:
        raise NotImplementedError

    def check(self, folder: Path, before: Facts, after: Facts) -> None:
        """Raise `AssertionError` if something is broken in a folder in which the command was killed.

        Args:
            folder: in which it was killed.
            before: the facts of the folder before the command, empty if it replaces nothing.
            after: the facts of a folder in which it finished.
        """
        raise NotImplementedError

    def resumed(self, folder: Path) -> Sequence[str]:
        """Return the words that finish a killed command."""
        return self.words


# Training: checkpoints and model folders are complete at any moment, and the run resumes from its last checkpoint.


class Fit(Case):
    def __init__(self, name: str) -> None:
        self.run = f"runs/maze_fo/{name}"
        self.words = ["fit", "--config", f"{name}.yaml"]

    def facts(self, folder: Path) -> Facts:
        return run_facts(folder / self.run)

    def check(self, folder: Path, before: Facts, after: Facts) -> None:
        check_run(folder / self.run)

    def resumed(self, folder: Path) -> Sequence[str]:
        if (folder / self.run / "last.ckpt").is_file():
            return [*self.words, f"--ckpt_path={self.run}/last.ckpt"]
        return [*self.words, "--overwrite"] if has_run(folder / self.run) else self.words


def run_facts(run: Path) -> Facts:
    """Weights bit by bit, model folders and rows of metrics of a finished run."""
    left = [str(path) for path in run.rglob(".*") if not path.name.endswith(".lock")]
    if left:
        raise AssertionError(f"left over: {', '.join(left)}")
    facts: dict[str, Any] = {"metrics": metrics(run)}
    for name in ("last", "best"):
        checkpoint = run / f"{name}.ckpt"
        facts[f"weights of {name}"] = weights(checkpoint)
        facts[f"model {name}"] = model(run / name)
        facts[f"{name} is of the checkpoint"] = weights_of(run / name) == weights_of(checkpoint)
    return facts


def weights(checkpoint: Path) -> dict[str, str]:
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    return {name: digest(tensor.float().numpy().tobytes()) for name, tensor in state.items()}


def model(folder: Path) -> dict[str, str]:
    """Digests of the tensors of a model folder. Those of whole files would differ in the order of their metadata."""
    digests = {}
    for file in folder.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            digests[f"{file.name} {name}"] = digest(tensor.numpy().tobytes())
    return digests


def metrics(run: Path) -> list[str]:
    """Rows of metrics.csv without times, which differ from run to run."""
    rows = []
    with (run / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            values = {name: value for name, value in row.items() if value and not name.startswith(("perf/", "time/"))}
            rows.append(json.dumps(values, sort_keys=True))
    if len(set(rows)) != len(rows):
        raise AssertionError(f"{run}: metrics.csv has a row twice")
    return rows


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def check_run(run: Path) -> None:
    """Read every checkpoint and model folder of a run that was killed."""
    for name in ("last", "best"):
        checkpoint = run / f"{name}.ckpt"
        if checkpoint.exists():
            weights_of(checkpoint)
            weights(checkpoint)
        if (run / name).exists():
            missing = [file for file in read_manifest(run / name)["files"] if not (run / name / file).is_file()]
            if missing:
                raise AssertionError(f"{run / name} lacks {missing}")
    if (run / "last.ckpt").exists() and not (run / "last").exists():
        raise AssertionError(f"{run / 'last'} is missing")


# Commands that replace what an earlier one has left: at any moment the old or the new is there.


class Replacement(Case):
    def __init__(self, words: Sequence[str], facts: Callable[[Path], Facts]) -> None:
        self.words = words
        self._facts = facts

    def facts(self, folder: Path) -> Facts:
        return self._facts(folder)

    def check(self, folder: Path, before: Facts, after: Facts) -> None:
        if self.facts(folder) not in (before, after):
            raise AssertionError("the folder holds neither what it held before nor what the command leaves")


def evaluation(folder: Path) -> Facts:
    path = folder / "evaluation"
    scores = json.loads((path / "scores.json").read_text())
    episodes = [repr(episode) for episode in read_episodes(path / "episodes.parquet")]
    if len(episodes) != scores["episodes"]:
        raise AssertionError("scores of other episodes")
    return {"scores": scores, "episodes": episodes, "probe": (path / "probe.json").read_text()}


def exported(folder: Path) -> Facts:
    files = [path for path in (folder / "model").rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): digest(path.read_bytes()) for path in files}


def dataset(folder: Path) -> Facts:
    return {"episodes": [repr(episode) for episode in read_episodes(folder / "new.parquet")]}


# Reproduction: a table of one run. Its commands are started by a launcher, which forks them, too.


class Reproduction(Case):
    words = ("reproduce",)

    def facts(self, folder: Path) -> Facts:
        cells = {}
        for path in folder.glob("table/maze_fo/*/cell.json"):
            cell = json.loads(path.read_text())
            cells[path.parent.name] = (cell["scores"]["return_mean"], cell.get("steps"))
        run = run_facts(folder / "table/maze_fo/bc")
        return {"cells": cells, "run": run, "csv": (folder / "report/table.csv").is_file()}

    def check(self, folder: Path, before: Facts, after: Facts) -> None:
        check_run(folder / "table/maze_fo/bc")

    def function(self) -> int:
        trainer = configuration("bc")["trainer"]
        overrides = [f"--trainer.{name}={json.dumps(trainer[name])}" for name in ("callbacks", "max_steps")]
        overrides.append(f"--model.init_args.architecture={json.dumps({**TINY, 'n_positions': 512})}")
        overrides.append("--data.init_args.batch_size=40")
        order = Order(["maze_fo"], ["bc"], Path("table"), episodes=2, data_size=40, overrides=overrides, env=ENV)
        try:
            reproduce(order, report="report", launcher=json.loads(Path("launcher.json").read_text()))
        except UserError as error:
            print(f"error: {error}")
            return 2
        return 0


EVALUATE = ["evaluate", "maze_fo", "--policy", "runs/maze_fo/base", "--out", "evaluation", "--env", "max_steps=4"]
EVALUATE += ["--episodes", "3", "--temperature", "0"]
GENERATE = ["data", "generate", "maze_fo", "--size", "300", "--out", "new.parquet", "--seed", "1", "--overwrite"]

CASES: dict[str, Case] = {
    "fit bc": Fit("bc"),
    "fit ilql": Fit("ilql"),
    "fit ppo": Fit("ppo"),
    "fit online_ilql": Fit("online_ilql"),
    "evaluate": Replacement([*EVALUATE, "--seed", "1"], evaluation),
    "export": Replacement(["export", "runs/maze_fo/base", "--to", "model"], exported),
    "generate": Replacement(GENERATE, dataset),
    "reproduce": Reproduction(),
}


# The folder in which each command starts.


def configuration(name: str) -> dict[str, Any]:
    """A training of a few steps in a folder of its own."""
    run = f"runs/maze_fo/{name}"
    online = name in ("ppo", "online_ilql")
    kinds = {"ppo": "PPO", "ilql": "ILQL", "online_ilql": "ILQL"}
    start = {"architecture": TINY} if name in ("bc", "base", "other") else {"pretrained": "runs/maze_fo/base"}
    data: dict[str, Any] = {"task": "maze_fo", "batch_size": 40, "env": ENV}
    if online:
        data |= {"epochs": 2, "batch_size": 8, "keep_replay": name == "online_ilql"}
    else:
        data["path"] = "maze.parquet"
    every_six_steps = {"task": "maze_fo", "every_n_steps": 6, "episodes": 2, "env": ENV}
    callbacks: list[dict[str, Any]] = [
        {
            "class_path": "InteractiveEvaluation",
            "init_args": {**every_six_steps, "decoding": {"max_new_tokens": 2}},
        },
        {"class_path": "KeepLast", "init_args": {"every_n_steps": 4}},
    ]
    if online:
        callbacks.insert(0, {"class_path": "RolloutCollection", "init_args": {"episodes": 6, "slots": 4}})
    return {
        "model": {"class_path": kinds.get(name, "BC"), "init_args": {**start, "lr": 0.01}},
        "data": {"class_path": "OnlineDataModule" if online else "MazeDataModule", "init_args": data},
        "trainer": {
            "default_root_dir": run,
            "max_steps": 16,
            "accelerator": "cpu",
            "log_every_n_steps": 1,
            "limit_val_batches": 0 if online else 1,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "logger": {"class_path": "CSVLogger", "init_args": {"save_dir": run, "name": "", "version": ""}},
            "callbacks": callbacks,
        },
    }


def prepare(folder: Path) -> None:
    """Make data, a BC run, and the files that the commands will replace."""
    folder.mkdir()
    for name in ("base", "other", "bc", "ilql", "ppo", "online_ilql"):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(configuration(name)))
    generate = ["data", "generate", "maze_fo", "--size", "60", "--out"]
    for words in (
        [*generate, "maze.parquet"],
        [*generate, "new.parquet"],
        ["fit", "--config", "base.yaml"],
        [*EVALUATE, "--seed", "0"],
        ["fit", "--config", "other.yaml", "--seed_everything=1"],
        ["export", "runs/maze_fo/other", "--to", "model"],
    ):
        finish(forked.start(words, folder, folder / "log.txt"))


# The experiments. They fork, and only a process without threads can be forked: each has a process of its own.


def finish(command: forked.Running) -> None:
    if command.wait() != 0:
        raise AssertionError(f"{command.words} failed: {command.output()[-2000:]}")


def undisturbed(case: Case, base: Path, work: Path) -> tuple[Facts, float]:
    """Return what the command leaves and the seconds that it takes."""
    folder = work / "undisturbed"
    shutil.copytree(base, folder)
    began = monotonic()
    finish(forked.start(case.words, folder, folder / "log.txt", case.function))
    seconds = monotonic() - began
    return forked.in_child(lambda: case.facts(folder)), seconds


def kill(name: str, base: Path, work: Path) -> list[str]:
    """Kill the command at random moments, each time in a folder of its own; return what was wrong."""
    case = CASES[name]
    before = forked.in_child(lambda: case.facts(base)) if isinstance(case, Replacement) else {}
    after, longest = undisturbed(case, base, work)
    rng = Random(f"{name} 0")
    faults = []
    killed = 0
    while killed < KILLS:
        folder = work / f"killed-{killed}"
        shutil.copytree(base, folder)
        moment = rng.uniform(0.0, longest)
        if not forked.start(case.words, folder, folder / "log.txt", case.function).kill_after(moment):
            # The command had ended by then, so it takes less time than the first one. This does not count.
            longest = moment
            shutil.rmtree(folder)
            continue
        killed += 1
        try:
            check_killed(case, folder, before, after)
            shutil.rmtree(folder)
        except AssertionError as error:
            faults.append(f"after {moment:.2f} s: {error}")
    return faults


def check_killed(case: Case, folder: Path, before: Facts, after: Facts) -> None:
    forked.in_child(lambda: case.check(folder, before, after))
    sleep(0.3)  # processes that end with the killed one need a moment
    finish(forked.start(case.resumed(folder), folder, folder / "log.txt", case.function))
    check_facts(forked.in_child(lambda: case.facts(folder)), after)


def start_twice(name: str, base: Path, work: Path) -> list[str]:
    """Start the command twice in one folder, the second a random moment after the first; return what was wrong."""
    case = CASES[name]
    after, seconds = undisturbed(case, base, work)
    rng = Random(f"{name} 0")
    faults = []
    for number in range(PAIRS):
        folder = work / f"pair-{number}"
        shutil.copytree(base, folder)
        first = forked.start(case.words, folder, folder / "first.txt", case.function)
        sleep(rng.uniform(0.0, seconds / 2))
        second = forked.start(case.words, folder, folder / "second.txt", case.function)
        try:
            check_pair(first, second, refused=isinstance(case, Fit))
            check_facts(forked.in_child(lambda folder=folder: case.facts(folder)), after)
            shutil.rmtree(folder)
        except AssertionError as error:
            faults.append(str(error))
    return faults


def check_pair(first: forked.Running, second: forked.Running, refused: bool) -> None:
    """Check the exit codes and the messages; ``refused`` means that one of both must be."""
    codes = (first.wait(), second.wait())
    if codes not in ((0, 2), (2, 0)) and (refused or codes != (0, 0)):
        raise AssertionError(f"exit codes {codes}: {first.output()[-300:]} / {second.output()[-300:]}")
    for command in (first, second):
        output = command.output()
        if "Traceback" in output:
            raise AssertionError(f"a traceback: {output[-500:]}")
        errors = [line for line in output.splitlines() if line.startswith("error: ")]
        reasons = ("in use by", "holds a run", "records")
        if command.wait() and not (len(errors) == 1 and any(reason in output for reason in reasons)):
            raise AssertionError(f"the refusal is not one line with the reason: {output[-300:]}")


def check_facts(facts: Facts, expected: Facts) -> None:
    different = [name for name in {**facts, **expected} if facts.get(name) != expected.get(name)]
    if different:
        raise AssertionError(f"differs from the undisturbed command in {', '.join(different)}")


def main(experiment: str, name: str, base: Path, work: Path) -> None:
    """Print the faults of an experiment as JSON."""
    if experiment == "prepare":
        prepare(base)
        return
    work.mkdir()
    with forked.launcher() as launcher:
        (base / "launcher.json").write_text(json.dumps(launcher))
        faults = {"kill": kill, "start_twice": start_twice}[experiment](name, base, work)
    print(f"\n{json.dumps(faults)}")


def in_a_process(*words: str | Path) -> str:
    """Call `main` in a process of its own and return the last line of its output."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().rpartition("\n")[2]


@pytest.fixture(name="base", scope="module")
def base_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("killed") / "base"
    in_a_process("prepare", "", base, "")
    return base


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", CASES)
def test_a_killed_command_leaves_nothing_broken_and_can_be_finished(base: Path, tmp_path: Path, name: str) -> None:
    assert json.loads(in_a_process("kill", name, base, tmp_path / "work")) == []


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("name", ["fit bc", "export", "evaluate", "reproduce", "generate"])
def test_of_two_commands_at_once_one_is_refused_or_both_succeed(base: Path, tmp_path: Path, name: str) -> None:
    assert json.loads(in_a_process("start_twice", name, base, tmp_path / "work")) == []


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
