"""Commands that are killed at random moments, and two at once in one folder: what is there afterwards.

A case is a command on tiny models and data, run in forked processes (`benchmarks.forked`). It is first run without
disturbance. Then it is killed (SIGKILL) at moments drawn uniformly over the time that it took, checked, and run again;
and started twice in one folder. ``python -m benchmarks robustness`` takes some minutes and runs on request only.
"""

import csv
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from benchmarks import forked
from benchmarks.row import Row
from lmrl.data.storage import read_episodes
from lmrl.errors import UserError
from lmrl.models.checkpoints import has_run, weights_of
from lmrl.models.export import read_manifest
from lmrl.reproduce import Order, reproduce

__all__ = ["CASES", "Case", "kills", "pairs", "prepare", "run"]

KILLS, PAIRS = 20, 10
TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128, "initializer_range": 0.3}
ENV = {"max_steps": 4}
#: Of metrics: what differs between two runs that are the same.
_TIMES = ("perf/", "time/")

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """A command, what it leaves, and what must be true of that whenever it is killed."""

    name: str
    words: Sequence[str]
    """After ``lmrl``."""
    facts: Callable[[Path], Facts]
    """What it has made in a folder where it was finished; the same in all such folders."""
    check: Callable[[Path, Facts, Facts], None]
    """Of a folder in which it was killed, with the facts of before and of afterwards; raises if something is broken."""
    again: Callable[[Path, Sequence[str]], Sequence[str]] = field(default=lambda folder, words: words)
    """The words with which it goes on."""
    act: Callable[[Path], Callable[[], int] | None] = field(default=lambda folder: None)
    """What is done in place of the words."""


# -- what is there -------------------------------------------------------------------------------------------------


def _tensors(checkpoint: Path) -> dict[str, str]:
    state = torch.load(checkpoint, weights_only=True)["state_dict"]
    return {name: hashlib.sha256(t.float().numpy().tobytes()).hexdigest() for name, t in state.items()}


def _model(folder: Path) -> dict[str, str]:
    """By tensors: the order of a file's metadata is left to chance."""
    found = {file.name: load_file(file) for file in folder.glob("*.safetensors")}
    digests = {f"{name} {key}": tensor.numpy().tobytes() for name, its in found.items() for key, tensor in its.items()}
    return {name: hashlib.sha256(content).hexdigest() for name, content in digests.items()}


def _files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def _metrics(run: Path) -> list[str]:
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    kept = [{k: v for k, v in row.items() if v and not k.startswith(_TIMES)} for row in rows]
    found = [json.dumps(row, sort_keys=True) for row in kept]
    if len(set(found)) != len(found):
        raise AssertionError(f"{run}: rows of metrics.csv twice")
    return found


def _no_leftovers(folder: Path) -> None:
    left = [str(path) for path in folder.rglob(".*") if not path.name.endswith(".lock")]
    if left:
        raise AssertionError(f"left over: {', '.join(left)}")


def _run_facts(run: Path) -> Facts:
    """Of a finished run: weights bit by bit, model folders, rows of metrics."""
    _no_leftovers(run)
    weights = {name: _tensors(run / f"{name}.ckpt") for name in ("last", "best")}
    models = {name: _model(run / name) for name in ("last", "best")}
    tags = [weights_of(run / name) == weights_of(run / f"{name}.ckpt") for name in ("last", "best")]
    return {"weights": weights, "models": models, "metrics": _metrics(run), "tags": tags}


def _check_run(run: Path) -> None:
    """Of a run that was killed: every checkpoint and folder that is there can be read, and nothing is half there."""
    for name in ("last", "best"):
        if (run / f"{name}.ckpt").exists():
            weights_of(run / f"{name}.ckpt")
            _tensors(run / f"{name}.ckpt")
        if (run / name).exists():
            missing = [file for file in read_manifest(run / name)["files"] if not (run / name / file).is_file()]
            if missing:
                raise AssertionError(f"{run / name} lacks {missing}")
    if (run / "last.ckpt").exists() and not (run / "last").exists():
        raise AssertionError(f"{run / 'last'} is missing")


def _go_on(run: str) -> Callable[[Path, Sequence[str]], Sequence[str]]:
    def words(folder: Path, given: Sequence[str]) -> Sequence[str]:
        if (folder / run / "last.ckpt").is_file():
            return [*given, f"--ckpt_path={run}/last.ckpt"]
        return [*given, "--overwrite"] if has_run(folder / run) else given

    return words


def _fit(name: str) -> Case:
    run = f"runs/maze_fo/{name}"
    return Case(
        f"fit {name}",
        ["fit", "--config", f"{name}.yaml"],
        lambda folder: _run_facts(folder / run),
        lambda folder, before, after: _check_run(folder / run),
        _go_on(run),
    )


def _old_or_new(facts: Callable[[Path], Facts]) -> Callable[[Path, Facts, Facts], None]:
    def check(folder: Path, before: Facts, after: Facts) -> None:
        if facts(folder) not in (before, after):
            raise AssertionError("neither what was there before nor what comes after")

    return check


def _evaluation(folder: Path) -> Facts:
    path = folder / "evaluation"
    scores = json.loads((path / "scores.json").read_text())
    episodes = [repr(episode) for episode in read_episodes(path / "episodes.parquet")]
    if len(episodes) != scores["episodes"]:
        raise AssertionError("scores of other episodes")
    return {"scores": scores, "episodes": episodes, "probe": (path / "probe.json").read_text()}


def _export(folder: Path) -> Facts:
    return _files(folder / "model")


def _dataset(folder: Path) -> Facts:
    return {"episodes": [repr(episode) for episode in read_episodes(folder / "new.parquet")]}


def _table(folder: Path) -> Facts:
    cells = {path.parent.name: json.loads(path.read_text()) for path in folder.glob("table/maze_fo/*/cell.json")}
    kept = {name: (cell["scores"]["return_mean"], cell.get("steps")) for name, cell in cells.items()}
    return {
        "cells": kept,
        "run": _run_facts(folder / "table/maze_fo/bc"),
        "csv": (folder / "report/table.csv").is_file(),
    }


def _reproduce(folder: Path) -> Callable[[], int]:
    def act() -> int:
        config = _config("bc")
        overrides = [f"--trainer.{name}={json.dumps(config['trainer'][name])}" for name in ("callbacks", "max_steps")]
        overrides += [
            f"--model.init_args.architecture={json.dumps({**TINY, 'n_positions': 512})}",
            "--data.init_args.batch_size=40",
        ]
        order = Order(["maze_fo"], ["bc"], Path("table"), episodes=2, data_size=40, overrides=overrides, env=ENV)
        try:
            reproduce(order, report="report", launcher=json.loads(Path("launcher.json").read_text()))
        except UserError as error:
            print(f"error: {error}")
            return 2
        return 0

    return act


_EVALUATE = ["evaluate", "maze_fo", "--policy", "runs/maze_fo/base", "--out", "evaluation", "--env", "max_steps=4"]
_EVALUATE += ["--episodes", "3", "--temperature", "0"]
_EXPORT = ["export", "runs/maze_fo/base", "--to", "model"]
_GENERATE = ["data", "generate", "maze_fo", "--size", "300", "--out", "new.parquet"]

CASES = {
    case.name: case
    for case in (
        *(_fit(name) for name in ("bc", "ilql", "ppo", "online_ilql")),
        Case("evaluate", [*_EVALUATE, "--seed", "1"], _evaluation, _old_or_new(_evaluation)),
        Case("export", _EXPORT, _export, _old_or_new(_export)),
        Case("generate", [*_GENERATE, "--seed", "1", "--overwrite"], _dataset, _old_or_new(_dataset)),
        Case(
            "reproduce",
            ["reproduce"],
            _table,
            lambda folder, before, after: _check_run(folder / "table/maze_fo/bc"),
            act=_reproduce,
        ),
    )
}


# -- what it begins with ---------------------------------------------------------------------------------------------


def _config(name: str) -> dict[str, Any]:
    """A training of a few steps in a folder of its own."""
    run, online = f"runs/maze_fo/{name}", name in ("ppo", "online_ilql")
    kinds = {"ppo": "PPO", "ilql": "ILQL", "online_ilql": "ILQL"}
    start = {"architecture": TINY} if name in ("bc", "base", "other") else {"pretrained": "runs/maze_fo/base"}
    data: dict[str, Any] = {"task": "maze_fo", "batch_size": 40, "env": ENV}
    rounds = {"epochs": 2, "batch_size": 8, "keep_replay": name == "online_ilql"}
    callbacks: list[dict[str, Any]] = [
        {"class_path": "RolloutCollection", "init_args": {"episodes": 6, "slots": 4}},
        {
            "class_path": "InteractiveEvaluation",
            "init_args": {
                **{"task": "maze_fo", "every_n_steps": 6, "episodes": 2, "env": ENV},
                "decoding": {"max_new_tokens": 2},
            },
        },
        {"class_path": "KeepLast", "init_args": {"every_n_steps": 4}},
    ]
    return {
        "model": {"class_path": kinds.get(name, "BC"), "init_args": {**start, "lr": 0.01}},
        "data": {
            "class_path": "OnlineDataModule" if online else "MazeDataModule",
            "init_args": {**data, **rounds} if online else {**data, "path": "maze.parquet"},
        },
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
            "callbacks": callbacks if online else callbacks[1:],
        },
    }


def prepare(folder: Path) -> None:
    """Data, a BC run, and what the commands are about to replace."""
    folder.mkdir(parents=True)
    for name in ("base", "other", "bc", "ilql", "ppo", "online_ilql"):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(_config(name)))
    first = ["data", "generate", "maze_fo", "--size", "60", "--out", "maze.parquet"]
    for words in (
        first,
        [*first[:-1], "new.parquet"],
        ["fit", "--config", "base.yaml"],
        [*_EVALUATE, "--seed", "0"],
        ["fit", "--config", "other.yaml", "--seed_everything=1"],
        ["export", "runs/maze_fo/other", "--to", "model"],
    ):
        done = forked.start(words, folder, folder / "log.txt")
        if done.wait() != 0:
            raise AssertionError(f"{words} failed: {done.said()[-2000:]}")


# -- the two experiments ---------------------------------------------------------------------------------------------


def _before(case: Case, base: Path) -> Facts:
    replaced = case.name in ("evaluate", "export", "generate")
    return forked.in_child(lambda: case.facts(base)) if replaced else {}


def _undisturbed(case: Case, base: Path, work: Path) -> tuple[Facts, float]:
    """What it makes, and how long it takes."""
    folder = work / "undisturbed"
    shutil.copytree(base, folder)
    began = monotonic()
    done = forked.start(case.words, folder, folder / "log.txt", case.act(folder))
    if done.wait() != 0:
        raise AssertionError(f"{case.name} failed: {done.said()[-2000:]}")
    seconds = monotonic() - began
    return forked.in_child(lambda: case.facts(folder)), seconds


def kills(case: Case, base: Path, work: Path, times: int, seed: int = 0) -> dict[str, Any]:
    """Kill it so often at random moments, each in a folder of its own, check, and let it go on.

    A run that had ended before its moment does not count.

    Returns:
        ``seconds`` undisturbed, and ``broken``: what was wrong, empty if nothing was.
    """
    before, (after, seconds) = _before(case, base), _undisturbed(case, base, work)
    chance, killed, longest, broken = Random(f"{case.name} {seed}"), 0, seconds, []
    while killed < times:
        folder = work / f"killed-{killed}"
        shutil.copytree(base, folder)
        moment = chance.uniform(0.0, longest)
        if not forked.start(case.words, folder, folder / "log.txt", case.act(folder)).kill_after(moment):
            longest = moment  # it had ended by then, so it does not take as long as the first
            shutil.rmtree(folder)
            continue
        killed += 1
        try:
            forked.in_child(lambda folder=folder: case.check(folder, before, after))
            sleep(0.3)  # processes that were tied to it end
            done = forked.start(case.again(folder, case.words), folder, folder / "log.txt", case.act(folder))
            if done.wait() != 0:
                raise AssertionError(f"does not go on: {(done.said().splitlines() or [''])[-1][-200:]}")
            found = forked.in_child(lambda folder=folder: case.facts(folder))
            if found != after:
                raise AssertionError(f"differs from the undisturbed one in {_difference(found, after)}")
            shutil.rmtree(folder)
        except AssertionError as error:
            broken.append(f"after {moment:.2f} s: {error}")
    return {"seconds": round(seconds, 2), "broken": broken}


def pairs(case: Case, base: Path, work: Path, times: int, seed: int = 0) -> dict[str, Any]:
    """Start it twice in one folder, the second a random moment after the first.

    Returns:
        ``refused``: how often one was, and ``broken``: what was wrong, empty if nothing was.
    """
    after, seconds = _undisturbed(case, base, work)
    chance, refused, broken = Random(f"{case.name} {seed}"), 0, []
    for number in range(times):
        folder = work / f"pair-{number}"
        shutil.copytree(base, folder)
        one = forked.start(case.words, folder, folder / "one.txt", case.act(folder))
        sleep(chance.uniform(0.0, seconds / 2))
        two = forked.start(case.words, folder, folder / "two.txt", case.act(folder))
        codes = (one.wait(), two.wait())
        refused += 2 in codes
        try:
            _check_pair(codes, one.said(), two.said())
            found = forked.in_child(lambda folder=folder: case.facts(folder))
            if found != after:
                raise AssertionError(f"differs from a single one in {_difference(found, after)}")
            shutil.rmtree(folder)
        except AssertionError as error:
            broken.append(str(error))
    return {"refused": refused, "broken": broken}


def _check_pair(codes: tuple[int, int], one: str, two: str) -> None:
    if codes not in ((0, 0), (0, 2), (2, 0)):
        raise AssertionError(f"exit codes {codes}: {one[-300:]} / {two[-300:]}")
    for code, said in zip(codes, (one, two), strict=True):
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        if code and (len(errors) != 1 or not any(word in said for word in ("in use by", "holds a run", "records"))):
            raise AssertionError(f"the refusal is not one line that says why: {said[-300:]}")
        if "Traceback" in said:
            raise AssertionError(f"a traceback: {said[-500:]}")


def _difference(found: Facts, after: Facts) -> str:
    return ", ".join(str(key) for key in {**found, **after} if found.get(key) != after.get(key))


def run() -> Iterator[Row]:
    """All cases, in a temporary folder."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        prepare(work / "base")
        with forked.launcher(work) as launcher:
            (work / "base/launcher.json").write_text(json.dumps(launcher))
            for case in CASES.values():
                found = kills(case, work / "base", work / f"kills {case.name}", KILLS)
                yield _row(f"{case.name}: killed at random moments, then gone on with", found, KILLS)
            for name in ("fit bc", "export", "evaluate", "reproduce", "generate"):
                found = pairs(CASES[name], work / "base", work / f"pairs {name}", PAIRS)
                yield _row(f"{name}: two at once in one folder", found, PAIRS)


def _row(name: str, found: Mapping[str, Any], times: int) -> Row:
    right = times - len(found["broken"])
    what = f"{found['seconds']:.1f} s undisturbed" if "seconds" in found else f"{found['refused']} with a refusal"
    wrong = "".join(f"; {line}" for line in found["broken"])
    return Row(name, right, better="higher", asked=f"{times}", shown=f"{right} of {times} right, {what}{wrong}")
