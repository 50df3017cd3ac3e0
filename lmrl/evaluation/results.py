"""Result folders: what an evaluation leaves on disk, checked when it is read back.

A run lives in ``runs/<task>/<name>``::

    evaluation/episodes.parquet    every episode played
    evaluation/scores.json         the numbers; all files of the folder are of one evaluation
    evaluation/probe.json          tasks with a probe: what the policy does and expects in states of interest
    metrics.csv                    learning curves (here or in a folder below)
    evaluation_last/               the same of the last checkpoint, where it is not the best
    timing.json                    commands, seeds and wall times
    cell.json                      of a table: all of it in one record, written at the end
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from lmrl.data.storage import read_episodes, write_episodes
from lmrl.envs import registry
from lmrl.envs.registry import probe, tasks
from lmrl.errors import UserError, in_one_line
from lmrl.evaluation.curves import Curves, find_metrics, read_curves
from lmrl.evaluation.evaluate import Evaluation, evaluate
from lmrl.files import json_of_file, replacing, replacing_folder
from lmrl.types import Episode, Policy

__all__ = [
    "SCORE_KEYS",
    "TUNED",
    "Result",
    "check_evaluation_folder",
    "check_result_file",
    "notes_on_weights",
    "read_json",
    "read_results",
    "record_evaluation",
    "tuned_settings",
    "write_evaluation",
    "write_json",
]

Rule: TypeAlias = Callable[[Any, str], None]
"""Raises a `UserError` for a value that is of another kind; the second argument names the place."""

SCORE_KEYS = (
    "task policy episodes return_mean return_ci normalized normalized_ci success_rate success_ci length_mean "
    "illegal_rate seed"
).split()
"""What every ``scores.json`` holds, at least."""

TUNED = "tuned.json"
"""File in a run's folder: how it plays best, see `lmrl.evaluation.tuning.tune`."""


def check_result_file(record: Mapping[str, Any], path: Path) -> None:
    """Check what was read from ``scores.json``, ``timing.json``, ``cell.json`` or ``reproduce.json``.

    Raises:
        UserError: naming the file and the key, for a value of another kind.
    """
    rule = _FILES.get(path.name)
    if rule is not None:
        rule(record, f"{path}: ")


def _kind(is_right: Callable[[Any], bool], words: str) -> Rule:
    def check(value: Any, where: str) -> None:
        if not is_right(value):
            raise UserError(f"{where} must be {words}, got {in_one_line(repr(value), 60)}")

    return check


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300  # which NaN is not


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_text = _kind(lambda value: isinstance(value, str), "a text")
_number = _kind(_is_number, "a finite number")
_whole = _kind(
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0, "a whole number from 0"
)
_interval = _kind(
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)), "a list of two numbers"
)


def _maybe(rule: Rule) -> Rule:
    return lambda value, where: None if value is None else rule(value, where)


def _list(rule: Rule) -> Rule:
    def check(value: Any, where: str) -> None:
        _kind(lambda value: isinstance(value, list), "a list")(value, where)
        for place, item in enumerate(value):
            rule(item, f"{where}[{place}]")

    return check


def _object(each: Rule | None = None, **named: Rule) -> Rule:
    """An object whose members of these names are of their kinds; ``each``: all of the others."""

    def check(value: Any, where: str) -> None:
        _kind(lambda value: isinstance(value, dict), "an object")(value, where)
        for name, item in value.items():
            rule = named.get(name, each)
            if rule is not None:
                rule(item, f"{where}.{name}" if not where.endswith(" ") else f"{where}{name!r}")

    return check


def _all_of(names: list[str], rule: Rule) -> Rule:
    def check(value: Any, where: str) -> None:
        rule(value, where)
        if lacking := [name for name in names if name not in value]:
            raise UserError(f"{where} lacks {', '.join(lacking)}")

    return check


_made_with = _object(versions=_object(_text))
_scores = _object(
    task=_text,
    policy=_text,
    episodes=_whole,
    return_mean=_number,
    return_ci=_interval,
    normalized=_number,
    normalized_ci=_interval,
    success_rate=_number,
    success_ci=_interval,
    length_mean=_number,
    illegal_rate=_number,
    seed=_whole,
    warnings=_list(_text),
    provenance=_made_with,
)
_step = _object(command=_text, recipe=_text, note=_text, seconds=_number, before=_number, began=_number)
_full_scores = _all_of(SCORE_KEYS, _scores)
_cell = _object(
    task=_text,
    algorithm=_text,
    seed=_whole,
    recipe=_text,
    commands=_list(_text),
    seconds=_all_of(["total"], _object(_number)),
    note=_text,
    scores=_full_scores,
    last=_scores,
    versions=_object(_text),
    steps=_object(_whole),
    tokens=_object(_maybe(_whole)),
    file=_text,
    returns=_list(_number),
)
_FILES: Mapping[str, Rule] = {
    "scores.json": _scores,
    "timing.json": _object(_step),
    "cell.json": _cell,
    "reproduce.json": _object(commands=_list(_text), algorithms=_list(_text)),
}


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
    probe: Any
    """What the task's probe found (`lmrl.envs.task.Probe`); None where there was none."""
    cell: Mapping[str, Any]
    """Content of ``cell.json``; empty for runs that no table was made of."""

    def episodes(self) -> Iterator[Episode]:
        """The episodes that were played, in order."""
        return read_episodes(self.folder / "evaluation" / "episodes.parquet")


def write_evaluation(evaluation: Evaluation, directory: Path | str, probed: Any = None) -> dict[str, Any]:
    """Write ``episodes.parquet``, ``scores.json`` and ``probe.json`` if something was probed; return the scores.

    The folder takes the place of an earlier evaluation's as a whole, once it is complete: what fails or is killed
    before leaves that one as it was.

    Raises:
        UserError: as `check_evaluation_folder`.
    """
    check_evaluation_folder(directory)
    scores, hook = evaluation.scores(), probe(evaluation.task)
    metadata = {"task": evaluation.task, "policy": evaluation.policy, "seed": evaluation.seed}
    with replacing_folder(directory) as new:
        write_episodes(new / "episodes.parquet", evaluation.episodes, metadata)
        if probed is not None and hook is not None:
            hook.write(probed, new / "probe.json")
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
    metrics, probed = find_metrics(folder), path.with_name("probe.json")
    hook = probe(task) if task in tasks() else None
    return Result(
        name=folder.name,
        folder=folder,
        scores=scores,
        timing=read_json(folder / "timing.json"),
        curves={} if metrics is None else read_curves(metrics),
        probe=hook.read(probed) if hook is not None and probed.is_file() else None,
        cell=read_json(folder / "cell.json"),
    )


def record_evaluation(
    policy: Policy,
    task: str,
    directory: Path | str,
    *,
    episodes: int,
    seed: int = 0,
    slots: int = 32,
    name: str | None = None,
    greedy: Callable[[], Policy] | None = None,
    provenance: Mapping[str, Any] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    env: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Evaluate and write ``episodes.parquet``, ``scores.json`` and, for a task with a probe, ``probe.json``, at once.

    Args:
        policy: whoever plays.
        task: name of the task.
        directory: where the files go, for the report ``runs/<task>/<name>/evaluation``.
        episodes: how many to play.
        seed: of the evaluation.
        slots: how many environments play side by side.
        name: how the policy is called in tables.
        greedy: makes the same policy at temperature 0, for the task's probe (`lmrl.envs.task.Probe`).
        provenance: decoding settings, checkpoint, dataset: what the result was made with.
        on_episode: called with each episode as it ends.
        env: arguments of the environment.

    Returns:
        The content of ``scores.json``.

    Raises:
        UserError: the folder holds something else than an evaluation; as `evaluate`, and then the episodes that were
            finished are kept in ``episodes.partial.parquet``, in the order in which they ended; the message says so.
    """
    check_evaluation_folder(directory)
    finished: list[Episode] = []

    def note(episode: Episode) -> None:
        finished.append(episode)
        if on_episode is not None:
            on_episode(episode)

    partial = Path(directory) / "episodes.partial.parquet"
    try:
        played = evaluate(policy, task, episodes, seed, slots, note, name=name, provenance=provenance, env=env)
    except UserError as error:
        if not finished:
            raise
        write_episodes(partial, finished, {"task": task, "policy": name or type(policy).__name__, "seed": seed})
        raise UserError(f"{error}; the {len(finished)} episodes that were finished are in {partial}") from error
    return write_evaluation(played, directory, _probe(policy, greedy, task, env or {}))


def _probe(policy: Policy, greedy: Callable[[], Policy] | None, task: str, arguments: Mapping[str, Any]) -> Any:
    """What the task's probe finds; None if it has none, or the policy cannot be probed."""
    probe = registry.probe(task)
    if greedy is None or probe is None:
        return None
    asked = greedy()
    same = getattr(asked, "weights", None) == getattr(policy, "weights", None)  # a training may have replaced them
    return probe.run(asked, task, arguments) if same else None


def tuned_settings(run: Path) -> dict[str, float]:
    """The best settings of a run, as `tune` has left them.

    Raises:
        UserError: it was not tuned, or the file holds something else.
    """
    settings = read_json(run / TUNED).get("settings")
    if not isinstance(settings, dict) or not settings or not set(settings) <= {"temperature", "beta"}:
        raise UserError(f"{run} has no {TUNED}; make it with: lmrl tune {run}")
    numbers = {name: value for name, value in settings.items() if isinstance(value, int | float)}
    if len(numbers) != len(settings):
        raise UserError(f"{run / TUNED}: settings must be numbers, got {settings}")
    return {name: float(value) for name, value in numbers.items()}
