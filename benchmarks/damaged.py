"""A thousand damaged files of all kinds that are read: each is refused in one line, or read as a whole.

Files are made by the package, damaged by `benchmarks.damage`, and read as the commands read them. What happens is one
of

- refused: an error for people in one line, which names the file;
- the same: the damage was in what nobody reads, and what was read is what was written;
- another valid file: what was read has the right form and other values, as where a letter of a text has changed;
- shorter: episodes at the end of a file without a count are gone, which cannot be seen;
- a fault: any other exception, an error without the file's name or of many lines, or a file that was half converted.
"""

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lmrl
from benchmarks.damage import BYTES, CHECKPOINT, JSON, JSON_LINES, PARQUET, Damage
from benchmarks.row import Row
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
from lmrl.models.export import load_values
from lmrl.modules import BC, ILQL, load_module
from lmrl.play.viewer import view_data
from lmrl.rollout import in_order, rollout
from lmrl.types import Episode, Start

__all__ = ["Kind", "Outcome", "kinds", "run", "try_files"]

FILES = 1000
_TINY = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}


@dataclass(frozen=True)
class Kind:
    """A kind of file: how a good one is read, and what else may happen to it than to any file."""

    name: str
    share: int
    """Of `FILES`."""
    root: Path
    """A folder with a good one and all that belongs to it; it is copied, and the file damaged in the copy."""
    file: str
    """Where the file is in it."""
    read: Callable[[Path], Any]
    """From such a folder all that the file holds, comparable."""
    damages: Mapping[str, Damage] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What happened to one file."""

    kind: str
    damage: str
    what: str
    """``refused``, ``the same``, ``another valid file``, ``shorter`` or ``fault``."""
    said: str


def run(files: int = FILES, seed: int = 0) -> Iterator[Row]:
    """Damage, read, and count."""
    found: Counter[tuple[str, str]] = Counter()
    with TemporaryDirectory() as folder:
        for outcome in try_files(Path(folder), files, seed):
            found[outcome.kind, outcome.what] += 1
            if outcome.what == "fault":
                print(f"FAULT {outcome.kind}, {outcome.damage}: {outcome.said}", flush=True)
    total = Counter[str]()
    for kind in dict.fromkeys(kind for kind, _ in found):
        its = {what: count for (other, what), count in found.items() if other == kind}
        total.update(its)
        yield Row(f"{kind}: refused", its.get("refused", 0), shown=_words(its))
    yield Row("all files", sum(total.values()), "files", shown=_words(total))
    yield Row("faults", total["fault"], "", "lower", "0")


def _words(counts: Mapping[str, int]) -> str:
    return f"of {sum(counts.values())}: " + ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))


def try_files(folder: Path, files: int, seed: int) -> Iterator[Outcome]:
    """Damage and read so many files; the same ones for the same seed, whatever their number before them.

    Args:
        folder: an empty one for the files.
        files: how many, shared among the kinds as `Kind.share` says.
        seed: decides the damage.
    """
    for kind in kinds(folder / "good"):
        good, damages = kind.read(kind.root), {**BYTES, **kind.damages}
        # As often as all ways that any file knows together: those of the kind are the sharper ones.
        names = [*BYTES, *[name for name in kind.damages for _ in range(len(BYTES) // (2 * len(kind.damages)))]]
        for number in range(math.ceil(files * kind.share / FILES)):
            chance = Random(f"{seed} {kind.name} {number}")
            name = names[number % len(names)]
            copy = folder / "damaged"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(kind.root, copy)
            damages[name](copy / kind.file, chance)
            yield Outcome(kind.name, name, *_tried(kind, copy, good))


def _tried(kind: Kind, root: Path, good: Any) -> tuple[str, str]:
    try:
        found = kind.read(root)
    except UserError as error:
        said = str(error)
    except Exception as error:
        refused = system_error(error)
        if refused is None:
            return "fault", f"{type(error).__name__}: {error}"[:300]
        said = refused
    else:
        if _same(found, good):
            return "the same", ""
        return ("shorter" if _shorter(found, good) else "another valid file"), ""
    half = [file.name for file in root.glob("converted*")]
    if half or "\n" in said or str(root / kind.file) not in said:
        return "fault", f"{half} {said}"[:300]
    return "refused", said


def _same(found: Any, good: Any) -> bool:
    if isinstance(found, Tensor) and isinstance(good, Tensor):
        return torch.equal(found, good)
    if isinstance(found, np.ndarray) and isinstance(good, np.ndarray):
        return bool(np.array_equal(found, good, equal_nan=True))
    if isinstance(found, Mapping) and isinstance(good, Mapping):
        return found.keys() == good.keys() and all(_same(found[name], good[name]) for name in good)
    if isinstance(found, tuple | list) and isinstance(good, tuple | list):
        return len(found) == len(good) and all(map(_same, found, good))
    return bool(found == good) or found is good


def _shorter(found: Any, good: Any) -> bool:
    episodes, all_of_them = (value.get("episodes") if isinstance(value, dict) else None for value in (found, good))
    return bool(episodes is not None and len(episodes) < len(all_of_them))


# -- the kinds -----------------------------------------------------------------------------------------------------


def kinds(folder: Path) -> Iterator[Kind]:
    """Good files of every kind, made on the way."""
    yield from _datasets(folder)
    yield from _official(folder)
    yield from _results(folder)
    yield from _ratings(folder)
    yield from _models(folder)


def _datasets(folder: Path) -> Iterator[Kind]:
    for task, suffix, share in (
        ("maze_po", ".parquet", 100), ("wordle", ".parquet", 75), ("maze_po", ".jsonl", 100), ("wordle", ".jsonl", 75),
    ):  # fmt: skip
        root, name = folder / f"{task}{suffix}", f"data{suffix}"
        generate(task, 30, out=root / name, progress=False)
        damages = PARQUET if suffix == ".parquet" else JSON_LINES
        yield Kind(f"{suffix[1:]} ({task})", share, root, name, _dataset(name), damages)


def _dataset(name: str) -> Callable[[Path], dict[str, Any]]:
    """As ``lmrl data stats``, ``verify`` and ``view`` read it."""

    def read(root: Path) -> dict[str, Any]:
        path = root / name
        metadata, episodes = read_metadata(path), list(read_dataset(path))
        dataset_stats(path)
        verify(path)
        view_data(episodes, recorded=metadata.get("env"))
        return {"metadata": metadata, "episodes": episodes}

    return read


def _official(folder: Path) -> Iterator[Kind]:
    boards = [_transitions(episode) for episode in _played("maze_fo", 6)]
    words = [_sequence(episode) for episode in _played("wordle", 6)]
    asked = [_lines(episode) for episode in _played("twenty_questions", 6)]
    chess = [_transitions(episode) for episode in _played("endgames", 3)]
    sold = [_conversation(episode) for episode in _played("car_dealer", 4)]
    for task, records, as_list, share in (
        ("maze_fo", boards, False, 50), ("wordle", words, False, 40), ("twenty_questions", asked, True, 40),
        ("endgames", chess, True, 30), ("car_dealer", sold, False, 40),
    ):  # fmt: skip
        root = folder / f"official_{task}"
        root.mkdir()
        text = json.dumps(records, indent=1) if as_list else "".join(json.dumps(record) + "\n" for record in records)
        (root / "official.json").write_text(text)
        damages = JSON if as_list else JSON_LINES
        yield Kind(f"official ({task})", share, root, "official.json", _converted(task), damages)


def _converted(task: str) -> Callable[[Path], dict[str, Any]]:
    def read(root: Path) -> dict[str, Any]:
        out = root / "converted.parquet"
        import_official(task, root / "official.json", out)
        found = list(read_dataset(out))
        out.unlink()
        return {"episodes": found}

    return read


def _played(task: str, count: int) -> list[Episode]:
    starts = map(Start, range(count))
    return in_order(rollout(make_policy(task, "behaviour"), lambda: lmrl.make(task), starts, task=task))


def _transitions(episode: Episode) -> list[dict[str, Any]]:
    parts = zip(episode.observations, episode.actions, episode.rewards, strict=False)
    steps = [{"state": s.strip("\n") + "\n", "action": a, "reward": r, "done": False} for s, a, r in parts]
    steps[-1]["done"] = True
    return steps


def _sequence(episode: Episode) -> dict[str, Any]:
    sequence: list[list[Any]] = [[episode.observations[0], 0]]
    rewards: list[float] = []
    for action, text, reward in zip(episode.actions, episode.observations[1:], episode.rewards, strict=True):
        sequence += [[action, 1], [text, 0]]
        rewards += [reward, 0.0]
    return {"sequence": sequence, "reward": rewards, "done": True}


def _lines(episode: Episode) -> dict[str, Any]:
    said = zip(episode.actions, episode.observations[1:], strict=True)
    lines = [f"{action.strip()} {text.strip()}" for action, text in said]
    return {"lines": lines, "correct": episode.success, "word": [episode.info["start"]["word"]]}


def _conversation(episode: Episode) -> dict[str, Any]:
    lines: list[dict[str, str]] = []
    for action, text in zip(episode.actions, episode.observations[1:], strict=True):
        lines += [{"role": "Seller", "text": action.strip()}, {"role": "Buyer", "text": text.strip()}]
    lines = [line for line in lines if line["text"]]
    return {"buyer_info": episode.info["start"], "lines": lines, "output": episode.info.get("output")}


def _results(folder: Path) -> Iterator[Kind]:
    """Files of a run that was evaluated, as ``lmrl report`` reads them."""
    runs, optimal = folder / "runs", make_policy("maze_fo", "optimal")
    mine, data = runs / "maze_fo" / "mine", runs / "maze_fo" / "data"
    scores = write_evaluation(evaluate(optimal, "maze_fo", 25), mine / "evaluation", probe_maze(optimal, "maze_fo"))
    step = {"command": "lmrl fit", "recipe": "0f", "before": 0.0, "began": 1.0, "seconds": 2.5}
    write_json({"fit": step, "evaluate": step}, mine / "timing.json")
    cell: dict[str, Any] = {"task": "maze_fo", "algorithm": "mine", "seed": 0, "recipe": "0f", "commands": ["lmrl fit"]}
    cell |= {"note": "", "seconds": {"fit": 2.5, "total": 5.0}, "scores": scores, "versions": {"lmrl": "0"}}
    played = {"last": scores, "tokens": {"trained": 9, "played": 0}, "steps": {"best": 1, "last": 2}}
    write_json({**cell, **played}, mine / "cell.json")
    data.mkdir()
    write_json({**cell, "algorithm": "data", "returns": [-9.0, -5.0, 0.0], "file": "x"}, data / "cell.json")
    (mine / "metrics.csv").write_text("epoch,step,train/loss\n" + "".join(f"0,{i},{1 / (i + 1)}\n" for i in range(40)))
    for name, share, damages in (
        ("mine/evaluation/scores.json", 40, JSON), ("mine/timing.json", 25, JSON), ("mine/cell.json", 25, JSON),
        ("mine/evaluation/probe.json", 25, JSON), ("mine/metrics.csv", 25, {}), ("data/cell.json", 20, JSON),
    ):  # fmt: skip
        yield Kind(f"results ({name})", share, runs, f"maze_fo/{name}", _report, damages)


def _report(root: Path) -> Any:
    result = read_records(root, "maze_fo")["mine"][0]
    curves = read_record_curves(root, "maze_fo")
    held = (result.scores, result.timing, curves, result.probe, result.cell)
    return held, score("maze_fo", "mine", {0: result}), data_score(root, "maze_fo")


def _ratings(folder: Path) -> Iterator[Kind]:
    root = folder / "ratings"
    root.mkdir()
    ids = [f"{number:02x}" for number in range(12)]
    conditions = {name: {"condition": ("gpt", "mc")[place % 2]} for place, name in enumerate(ids)}
    write_json({"study": "s1", "samples": conditions}, root / "page.key.json")
    for rater in ("AB", "CD"):
        ratings = {name: 1 + (place + len(rater)) % 5 for place, name in enumerate(ids)}
        write_json({"study": "s1", "rater": rater, "ratings": ratings}, root / f"{rater}.json")
    for name, share in (("AB.json", 45), ("page.key.json", 25)):
        yield Kind(f"ratings ({name})", share, root, name, _rated, JSON)


def _rated(root: Path) -> Any:
    found = read_ratings(root / "page.key.json", [root / "AB.json", root / "CD.json"])
    return found.study, found.raters, found.samples, found.conditions, found.scores


def _models(folder: Path) -> Iterator[Kind]:
    """A checkpoint, and the folder that is exported from it."""
    bc = BC(architecture=_TINY)
    bc.export(folder / "bc" / "model")
    module = ILQL(pretrained=str(folder / "bc" / "model"))
    root = folder / "run"
    saved: dict[str, Any] = {"state_dict": module.state_dict(), "global_step": 1}
    module.on_save_checkpoint(saved)
    root.mkdir()
    torch.save(saved, root / "last.ckpt")
    yield Kind("checkpoint", 95, root, "last.ckpt", _checkpoint, CHECKPOINT)
    exported = folder / "exported"
    module.export(exported / "model")
    for name, share, damages in (
        ("value_heads.safetensors", 40, {}), ("model.safetensors", 40, {}), ("config.json", 15, JSON),
        ("tokenizer.json", 15, {}), ("lmrl.json", 15, JSON),
    ):  # fmt: skip
        yield Kind(f"model folder ({name})", share, exported, f"model/{name}", _folder, damages)


def _checkpoint(root: Path) -> Any:
    module = load_module(root / "last.ckpt")
    return dict(module.hparams), module.state_dict()


def _folder(root: Path) -> Any:
    module, values = load_module(root / "model"), load_values(root / "model")
    held = {name: tensor for head in values.q_heads for name, tensor in head.state_dict().items()}
    vocabulary = module.tokenizer.get_vocab()
    return dict(module.hparams), module.state_dict(), values.trunk.state_dict(), held, vocabulary
