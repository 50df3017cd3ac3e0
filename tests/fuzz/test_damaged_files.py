"""Damaged files of every kind that lmrl reads: each is refused in one line that names the file, or read as a whole.

Good files are made by lmrl, damaged by `tests.fuzz.damage`, and read as the commands read them. Reading may succeed:
the damage may be in a part that does not count, or leave another valid file, as where a letter of a text has changed.
Any exception except an error for users is a fault, and so is an error of several lines or without the name of the file,
and a file that was half converted.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import lmrl
from lmrl.checkpoints.export import load_values
from lmrl.contrib.study.ratings import read_ratings
from lmrl.data import dataset_stats, generate, import_official, read_dataset, verify
from lmrl.data.storage import read_metadata
from lmrl.envs.maze.probe import probe_maze
from lmrl.envs.registry import make_policy
from lmrl.errors import UserError, system_error
from lmrl.evaluation.evaluate import evaluate
from lmrl.evaluation.records import read_record_curves, read_records
from lmrl.evaluation.result_json import write_json
from lmrl.evaluation.run_folder import write_evaluation
from lmrl.evaluation.scores import data_score, score
from lmrl.modules import BC, ILQL, load_module
from lmrl.play.viewer import view_data
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Start
from tests.fuzz.damage import BYTES, CHECKPOINT, JSON, JSON_LINES, PARQUET, Damage

TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}


@dataclass(frozen=True)
class Kind:
    """A kind of file, a good file of it, and how commands read it."""

    name: str
    share: int
    """Of a thousand files, how many are of this kind."""
    root: Path
    """A folder with the good file and what belongs to it. It is copied, and the file damaged in the copy."""
    file: str
    """Where the file is in it."""
    read: Callable[[Path], object]
    """Reads the file in such a folder."""
    damages: Mapping[str, Damage] = field(default_factory=dict)
    """Damages of this kind, besides those of any file."""


@pytest.mark.parametrize(
    "files", [pytest.param(75, marks=pytest.mark.slow), pytest.param(1_000, marks=pytest.mark.nightly)]
)
def test_damaged_files_are_refused_by_name_or_read_as_a_whole(tmp_path: Path, files: int) -> None:
    faults = []
    count = 0
    refused = 0
    for kind in kinds(tmp_path / "good"):
        kind.read(kind.root)
        damages = {**BYTES, **kind.damages}
        # The damages of the kind are the sharper ones. They take a third of the files.
        names = list(BYTES)
        for name in kind.damages:
            names += [name] * (len(BYTES) // (2 * len(kind.damages)))
        # In any order, so that few files have damages of both sorts too.
        Random(f"order {kind.name}").shuffle(names)
        for number in range(math.ceil(files * kind.share / 1_000)):
            copy = tmp_path / "damaged"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(kind.root, copy)
            name = names[number % len(names)]
            damages[name](copy / kind.file, Random(f"0 {kind.name} {number}"))
            error, fault = read(kind, copy)
            count += 1
            refused += error
            if fault:
                faults.append(f"{kind.name}, {number}, {name}: {fault[:300]}")
    assert faults == []
    assert count >= files
    assert refused > 2 * files / 3


def read(kind: Kind, root: Path) -> tuple[bool, str]:
    """Read a damaged file; return whether it was refused, and what is wrong with the way in which it was."""
    try:
        kind.read(root)
    except UserError as error:
        message = str(error)
    except Exception as error:
        refusal = system_error(error)
        if refusal is None:
            return False, f"{type(error).__name__}: {error}"
        message = refusal
    else:
        return False, ""
    half_converted = [file.name for file in root.glob("converted*")]
    if half_converted or "\n" in message or str(root / kind.file) not in message:
        return True, f"{half_converted} {message}"
    return True, ""


# The kinds of files, each with a good one.


def kinds(folder: Path) -> Iterator[Kind]:
    yield from datasets(folder)
    yield from official_files(folder)
    yield from results(folder)
    yield from ratings(folder)
    yield from models(folder)


def datasets(folder: Path) -> Iterator[Kind]:
    for task, suffix, share in (
        ("maze_po", ".parquet", 100), ("wordle", ".parquet", 75), ("maze_po", ".jsonl", 100), ("wordle", ".jsonl", 75),
    ):  # fmt: skip
        root = folder / f"{task}{suffix}"
        name = f"data{suffix}"
        generate(task, 30, out=root / name, progress=False)
        damages = PARQUET if suffix == ".parquet" else JSON_LINES
        yield Kind(f"{suffix[1:]} ({task})", share, root, name, dataset_reader(name), damages)


def dataset_reader(name: str) -> Callable[[Path], None]:
    """Read as ``lmrl data stats``, ``verify`` and ``view`` do."""

    def read(root: Path) -> None:
        path = root / name
        metadata = read_metadata(path)
        episodes = list(read_dataset(path))
        dataset_stats(path)
        verify(path)
        view_data(episodes, recorded=metadata.get("env"))

    return read


def official_files(folder: Path) -> Iterator[Kind]:
    """Files of the published benchmark, which ``lmrl data import`` converts."""
    mazes = [transitions(episode) for episode in played("maze_fo", 6)]
    words = [sequence(episode) for episode in played("wordle", 6)]
    questions = [question_lines(episode) for episode in played("twenty_questions", 6)]
    endgames = [transitions(episode) for episode in played("endgames", 3)]
    sales = [conversation(episode) for episode in played("car_dealer", 4)]
    for task, records, as_list, share in (
        ("maze_fo", mazes, False, 50), ("wordle", words, False, 40), ("twenty_questions", questions, True, 40),
        ("endgames", endgames, False, 30), ("car_dealer", sales, False, 40),
    ):  # fmt: skip
        root = folder / f"official_{task}"
        root.mkdir()
        text = json.dumps(records, indent=1) if as_list else "".join(json.dumps(record) + "\n" for record in records)
        (root / "official.json").write_text(text)
        damages = JSON if as_list else JSON_LINES
        yield Kind(f"official ({task})", share, root, "official.json", converter(task), damages)


def converter(task: str) -> Callable[[Path], None]:
    def read(root: Path) -> None:
        out = root / "converted.parquet"
        import_official(task, root / "official.json", out)
        list(read_dataset(out))
        out.unlink()

    return read


def played(task: str, count: int) -> list[Episode]:
    starts = map(Start, range(count))
    return in_order(rollout(make_policy(task, "behaviour"), lambda: lmrl.make(task), starts, task=task))


def transitions(episode: Episode) -> list[dict[str, Any]]:
    steps = []
    for state, action, reward in zip(episode.observations, episode.actions, episode.rewards, strict=False):
        steps.append({"state": state.strip("\n") + "\n", "action": action, "reward": reward, "done": False})
    steps[-1]["done"] = True
    return steps


def sequence(episode: Episode) -> dict[str, Any]:
    texts: list[list[Any]] = [[episode.observations[0], 0]]
    rewards: list[float] = []
    for action, text, reward in zip(episode.actions, episode.observations[1:], episode.rewards, strict=True):
        texts += [[action, 1], [text, 0]]
        rewards += [reward, 0.0]
    return {"sequence": texts, "reward": rewards, "done": True}


def question_lines(episode: Episode) -> dict[str, Any]:
    turns = zip(episode.actions, episode.observations[1:], strict=True)
    lines = [f"{action.strip()} {text.strip()}" for action, text in turns]
    return {"lines": lines, "correct": episode.success, "word": [episode.info["start"]["word"]]}


def conversation(episode: Episode) -> dict[str, Any]:
    lines: list[dict[str, str]] = []
    for action, text in zip(episode.actions, episode.observations[1:], strict=True):
        lines += [{"role": "Seller", "text": action.strip()}, {"role": "Buyer", "text": text.strip()}]
    lines = [line for line in lines if line["text"]]
    return {"buyer_info": episode.info["start"], "lines": lines, "output": episode.info.get("output")}


def results(folder: Path) -> Iterator[Kind]:
    """Files of a run that was evaluated, as ``lmrl report`` reads them."""
    runs = folder / "runs"
    mine = runs / "maze_fo" / "mine"
    data = runs / "maze_fo" / "data"
    optimal = make_policy("maze_fo", "optimal")
    scores = write_evaluation(evaluate(optimal, "maze_fo", 25), mine / "evaluation", probe_maze(optimal, "maze_fo"))
    step = {"command": "lmrl fit", "recipe": "0f", "before": 0.0, "began": 1.0, "seconds": 2.5}
    write_json({"fit": step, "evaluate": step}, mine / "timing.json")
    cell: dict[str, Any] = {"task": "maze_fo", "algorithm": "mine", "seed": 0, "recipe": "0f", "commands": ["lmrl fit"]}
    cell |= {"note": "", "seconds": {"fit": 2.5, "total": 5.0}, "scores": scores, "versions": {"lmrl": "0"}}
    steps = {"last": scores, "tokens": {"trained": 9, "played": 0}, "steps": {"best": 1, "last": 2}}
    write_json({**cell, **steps}, mine / "cell.json")
    data.mkdir()
    write_json({**cell, "algorithm": "data", "returns": [-9.0, -5.0, 0.0], "file": "x"}, data / "cell.json")
    (mine / "metrics.csv").write_text("epoch,step,train/loss\n" + "".join(f"0,{i},{1 / (i + 1)}\n" for i in range(40)))
    for name, share, damages in (
        ("mine/evaluation/scores.json", 40, JSON), ("mine/timing.json", 25, JSON), ("mine/cell.json", 25, JSON),
        ("mine/evaluation/probe.json", 25, JSON), ("mine/metrics.csv", 25, {}), ("data/cell.json", 20, JSON),
    ):  # fmt: skip
        yield Kind(f"results ({name})", share, runs, f"maze_fo/{name}", read_results, damages)


def read_results(root: Path) -> None:
    result = read_records(root, "maze_fo")["mine"][0]
    read_record_curves(root, "maze_fo")
    score("maze_fo", "mine", {0: result})
    data_score(root, "maze_fo")


def ratings(folder: Path) -> Iterator[Kind]:
    root = folder / "ratings"
    root.mkdir()
    ids = [f"{number:02x}" for number in range(12)]
    conditions = {name: {"condition": ("gpt", "mc")[number % 2]} for number, name in enumerate(ids)}
    write_json({"study": "s1", "samples": conditions}, root / "page.key.json")
    for rater in ("AB", "CD"):
        grades = {name: 1 + (number + len(rater)) % 5 for number, name in enumerate(ids)}
        write_json({"study": "s1", "rater": rater, "ratings": grades}, root / f"{rater}.json")
    for name, share in (("AB.json", 45), ("page.key.json", 25)):
        yield Kind(f"ratings ({name})", share, root, name, read_both_ratings, JSON)


def read_both_ratings(root: Path) -> None:
    read_ratings(root / "page.key.json", [root / "AB.json", root / "CD.json"])


def models(folder: Path) -> Iterator[Kind]:
    """A checkpoint, and the model folder that is exported from it."""
    BC(architecture=TINY).export(folder / "bc" / "model")
    module = ILQL(pretrained=str(folder / "bc" / "model"))
    root = folder / "run"
    saved: dict[str, Any] = {"state_dict": module.state_dict(), "global_step": 1}
    module.on_save_checkpoint(saved)
    root.mkdir()
    torch.save(saved, root / "last.ckpt")
    yield Kind("checkpoint", 95, root, "last.ckpt", lambda root: load_module(root / "last.ckpt"), CHECKPOINT)
    exported = folder / "exported"
    module.export(exported / "model")
    for name, share, damages in (
        ("value_heads.safetensors", 40, {}), ("model.safetensors", 40, {}), ("config.json", 15, JSON),
        ("tokenizer.json", 15, {}), ("lmrl.json", 15, JSON),
    ):  # fmt: skip
        yield Kind(f"model folder ({name})", share, exported, f"model/{name}", read_model, damages)


def read_model(root: Path) -> None:
    load_module(root / "model").tokenizer.get_vocab()
    load_values(root / "model")
