"""Result folders: what an evaluation leaves on disk, and what the report reads back.

A run lives in ``runs/<task>/<name>``::

    evaluation/episodes.parquet    every episode played
    evaluation/scores.json         the numbers; all files of the folder are of one evaluation
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

from lmrl.atomic import replacing, replacing_folder
from lmrl.episode import Episode
from lmrl.errors import UserError
from lmrl.evaluation.curves import Curves, find_metrics, read_curves
from lmrl.evaluation.evaluate import Evaluation
from lmrl.evaluation.maze_probe import MazeProbe, read_probe, write_probe
from lmrl.evaluation.result_shapes import SCORE_KEYS, check_result_file
from lmrl.json_text import json_of_file
from lmrl.storage import read_episodes, write_episodes

__all__ = [
    "Result",
    "check_evaluation_folder",
    "notes_on_weights",
    "read_json",
    "read_results",
    "write_evaluation",
    "write_json",
]


_EVALUATION = ("episodes.parquet", "scores.json", "probe.json", "episodes.partial.parquet", "episodes.html")
"""Files of an evaluation; the last is the page of `lmrl view`."""


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
    """Write ``episodes.parquet``, ``scores.json`` and ``probe.json`` if there is a probe; return the scores.

    The folder takes the place of an earlier evaluation's as a whole, once it is complete: what fails or is killed
    before leaves that one as it was.

    Raises:
        UserError: as `check_evaluation_folder`.
    """
    check_evaluation_folder(directory)
    scores = evaluation.scores()
    metadata = {"task": evaluation.task, "policy": evaluation.policy, "seed": evaluation.seed}
    with replacing_folder(directory) as new:
        write_episodes(new / "episodes.parquet", evaluation.episodes, metadata)
        if probe is not None:
            write_probe(probe, new / "probe.json")
        write_json(scores, new / "scores.json")
    return scores


def check_evaluation_folder(directory: Path | str) -> None:
    """Make sure that an evaluation may take the place of what is there: nothing, or an earlier one.

    Raises:
        UserError: there is something else; it names an entry.
    """
    directory = Path(directory)
    if not (directory.exists() or directory.is_symlink()):
        return
    if not directory.is_dir():
        raise UserError(f"{directory} is not a folder; name a new one for the evaluation")
    others = sorted(entry.name for entry in directory.iterdir() if entry.name not in _EVALUATION)
    if others:
        raise UserError(
            f"{directory} holds {others[0]}, which is no part of an evaluation and would be lost; name a new folder, "
            f"such as {directory / 'evaluation'}"
        )


def read_results(runs: Path, task: str) -> dict[str, Result]:
    """All finished evaluations of a task, by the name of their folder; none of weights that the run no longer has.

    Raises:
        UserError: naming the file, if one is broken.
    """
    return {folder.name: _read(folder, task) for folder in _evaluated(runs, task) if not _is_outdated(folder)}


def notes_on_weights(runs: Path, task: str) -> list[str]:
    """A line for each evaluation that `read_results` leaves out, and one for those that do not say their weights."""
    lines, unknown = [], []
    for folder in _evaluated(runs, task):
        if _is_outdated(folder):
            lines.append(f"{folder / 'evaluation'} is of weights that the run no longer has: left out; play again")
        elif _weights(folder) and _played(folder) is None:
            unknown.append(folder.name)
    return lines + ([f"{task}: scores of {', '.join(unknown)} do not say which weights played"] if unknown else [])


def _evaluated(runs: Path, task: str) -> list[Path]:
    found = sorted(path.parent.parent for path in runs.joinpath(task).glob("*/evaluation/scores.json"))
    return [folder for folder in found if not folder.name.startswith(".")]


def _weights(run: Path) -> set[str]:
    """The hashes of the weights that a run has; empty where there are none, or they do not say."""
    entries = [read_json(run / name / "lmrl.json").get("made_with") for name in ("best", "last")]
    return {str(entry["weights"]) for entry in entries if isinstance(entry, dict) and "weights" in entry}


def _played(run: Path) -> str | None:
    """The hash of the weights that played; None if the scores do not say."""
    weights = read_json(run / "evaluation" / "scores.json").get("provenance", {}).get("weights")
    return None if weights is None else str(weights)


def _is_outdated(run: Path) -> bool:
    played, there = _played(run), _weights(run)
    return bool(played and there) and played not in there


def write_json(record: Mapping[str, Any], path: Path) -> None:
    """Write a JSON file in one step."""
    with replacing(path) as file:
        file.write(json.dumps(record, indent=2).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is no such file.

    Raises:
        UserError: naming the file, if it holds something else; one of a result folder also by key, if a value is of
            another kind than it must be.
    """
    if not path.exists():
        return {}
    record = json_of_file(path)
    check_result_file(record, path)
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
