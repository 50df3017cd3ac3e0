"""Result folders: what an evaluation leaves on disk, and what the report reads back.

A run lives in ``runs/<task>/<name>``::

    evaluation/episodes.parquet    every episode played
    evaluation/scores.json         the numbers; written last, so a folder that has it is complete
    evaluation/probe.json          mazes: greedy move and V of every cell
    metrics.csv                    learning curves (here or in a folder below)
    evaluation_last/               the same of the last checkpoint, where it is not the best
    timing.json                    commands, seeds and wall times
    cell.json                      of a table: all of it in one record, written at the end
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmrl.atomic import replacing
from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.evaluation.curves import Curves, find_metrics, read_curves
from lmrl.evaluation.evaluate import Evaluation
from lmrl.evaluation.maze_probe import MazeProbe, read_probe, write_probe
from lmrl.storage import read_episodes, write_episodes

__all__ = ["Result", "read_json", "read_results", "write_evaluation", "write_json"]

SCORE_KEYS = (
    "task policy episodes return_mean return_ci normalized normalized_ci success_rate success_ci length_mean "
    "illegal_rate seed"
).split()
"""What every ``scores.json`` holds, at least."""


@dataclass(frozen=True, slots=True)
class Result:
    """One finished run as it lies on disk."""

    name: str
    """Of its folder: ``ilql``, ``random``."""
    folder: Path
    scores: Mapping[str, Any]
    """Content of ``scores.json``."""
    timing: Mapping[str, Any]
    """Content of ``timing.json``; empty where nobody measured."""
    curves: Curves
    """Empty for players that were not trained."""
    probe: MazeProbe | None
    cell: Mapping[str, Any]
    """Content of ``cell.json``; empty for runs that no table was made of."""

    def episodes(self) -> Iterator[Episode]:
        """The episodes that were played, in order."""
        return read_episodes(self.folder / "evaluation" / "episodes.parquet")


def write_evaluation(evaluation: Evaluation, directory: Path | str, probe: MazeProbe | None = None) -> dict[str, Any]:
    """Write ``episodes.parquet``, ``probe.json`` if there is a probe, and at last ``scores.json``; return the scores.

    Each file takes its place in one step; a folder with ``scores.json`` is complete and of one evaluation.
    """
    directory, scores = Path(directory), evaluation.scores()
    for stale in ("scores.json", "probe.json"):
        (directory / stale).unlink(missing_ok=True)
    metadata = {"task": evaluation.task, "policy": evaluation.policy, "seed": evaluation.seed}
    write_episodes(directory / "episodes.parquet", evaluation.episodes, metadata)
    if probe is not None:
        write_probe(probe, directory / "probe.json")
    write_json(scores, directory / "scores.json")
    return scores


def read_results(runs: Path, task: str) -> dict[str, Result]:
    """All finished evaluations of a task, by the name of their folder.

    Raises:
        UserError: naming the file, if one is broken.
    """
    found = sorted(runs.joinpath(task).glob("*/evaluation/scores.json"))
    folders = [path.parent.parent for path in found]
    return {folder.name: _read(folder, task) for folder in folders if not folder.name.startswith(".")}


def write_json(record: Mapping[str, Any], path: Path) -> None:
    """Write a JSON file in one step."""
    with replacing(path) as file:
        file.write(json.dumps(record, indent=2).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file.

    Raises:
        UserError: naming the file, if it holds something else.
    """
    if not path.is_file():
        return {}
    try:
        record = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(record, dict):
        raise UserError(f"{path}: must hold a JSON object, got {type(record).__name__}")
    return record


def _read(folder: Path, task: str) -> Result:
    path = folder / "evaluation" / "scores.json"
    scores = read_json(path)
    if lacking := [key for key in SCORE_KEYS if key not in scores]:
        raise UserError(f"{path}: lacks {', '.join(lacking)}")
    if scores["task"] != task:
        raise UserError(f"{path}: scores of task {scores['task']!r} lie in the folder of {task!r}")
    metrics, probe = find_metrics(folder), path.with_name("probe.json")
    return Result(
        name=folder.name,
        folder=folder,
        scores=scores,
        timing=read_json(folder / "timing.json"),
        curves={} if metrics is None else read_curves(metrics),
        probe=read_probe(probe) if probe.is_file() else None,
        cell=read_json(folder / "cell.json"),
    )
