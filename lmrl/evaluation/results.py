"""Result folders: what an evaluation leaves on disk, checked when it is read back.

A run lives in ``runs/<task>/<name>``::

    evaluation/episodes.parquet    every episode played
    evaluation/scores.json         the numbers; all files of the folder are of one evaluation
    evaluation/episodes.csv        return, length, success and illegal actions of each episode
    evaluation/transcript.txt      the first episode, to read
    evaluation/probe.json          tasks with a probe: what the policy does and expects in states of interest
    metrics.csv                    learning curves (here or in a folder below)
    evaluation_last/               the same of the last checkpoint, where it is not the best
    evaluation_tuned/              the same with the settings of tuned.json
    tuned.json                     how the run plays best, as `lmrl tune` has found
    timing.json                    commands, seeds and wall times
    cell.json                      of a table: all of it in one record, written at the end
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmrl.data.records import table_of
from lmrl.data.storage import write_episodes
from lmrl.envs import registry
from lmrl.envs.registry import probe
from lmrl.errors import UserError
from lmrl.evaluation.evaluate import Evaluation, evaluate
from lmrl.evaluation.played import EpisodeTable, transcript, write_table
from lmrl.evaluation.playing import RayWorkers
from lmrl.evaluation.result_files import SCORE_KEYS, read_json, write_json
from lmrl.types import Episode, LoadedPolicy, Policy, unwrapped
from lmrl.utils.files import check_may_replace, replacing, replacing_folder

__all__ = [
    "CHOSEN",
    "TUNED",
    "check_evaluation_folder",
    "current_evaluations",
    "notes_on_weights",
    "read_scores",
    "read_transcript",
    "record_evaluation",
    "tuned_settings",
    "write_evaluation",
]

CHOSEN = ("temperature", "top_p", "beta")
"""Decoding settings that `lmrl.evaluation.tuning.tune` chooses."""
TUNED = "tuned.json"
"""File in a run's folder: how it plays best, see `lmrl.evaluation.tuning.tune`."""


_TABLE = "episodes.csv"
_TRANSCRIPT = "transcript.txt"
_PARTIAL = "episodes.partial.parquet"
_EVALUATION = ("episodes.parquet", "scores.json", "probe.json", "episodes.html", _PARTIAL, _TABLE, _TRANSCRIPT)
"""Files of an evaluation; ``episodes.html`` is the page of `lmrl view`."""


def write_evaluation(evaluation: Evaluation, directory: Path | str, probed: Any = None) -> dict[str, Any]:
    """Write ``episodes.parquet``, ``scores.json`` and ``probe.json`` if something was probed; return the scores.

    The folder takes the place of an earlier evaluation's as a whole, once it is complete: what fails or is killed
    before leaves that one as it was.

    Raises:
        UserError: as `check_evaluation_folder`.
    """
    check_evaluation_folder(directory)
    scores = evaluation.scores()
    hook = probe(evaluation.task)
    metadata = {"task": evaluation.task, "policy": evaluation.policy, "seed": evaluation.seed}
    with replacing_folder(directory) as new:
        write_episodes(new / "episodes.parquet", evaluation.episodes, metadata)
        write_table(EpisodeTable.of(evaluation.episodes), new / _TABLE)
        with replacing(new / _TRANSCRIPT) as file:
            file.write(f"{transcript(evaluation.episodes[0])}\n".encode())
        if probed is not None and hook is not None:
            write_json(hook.to_json(probed), new / "probe.json")
        write_json(scores, new / "scores.json")
    return scores


def check_evaluation_folder(directory: Path | str) -> None:
    """Make sure that an evaluation may take the place of what is there: nothing, or an earlier one.

    Raises:
        UserError: there is something else; it names an entry.
    """
    directory = Path(directory)
    scores = directory / "scores.json"
    has_scores = scores.is_file() and {"task", "episodes", "return_mean"} <= read_json(scores).keys()
    check_may_replace(directory, _EVALUATION if has_scores else (_PARTIAL,), "evaluation")


def current_evaluations(runs: Path, task: str) -> list[Path]:
    """Return the run folders of a task that hold an evaluation of the weights that they have now, sorted by name."""
    return [folder for folder in _evaluated(runs, task) if not _is_outdated(folder)]


def read_scores(evaluation: Path, task: str) -> dict[str, Any]:
    """Read ``scores.json`` of an evaluation folder.

    Raises:
        UserError: naming the file, if it is broken, lacks a key, or is of another task.
    """
    path = evaluation / "scores.json"
    scores = read_json(path)
    lacking = [key for key in SCORE_KEYS if key not in scores]
    if lacking:
        raise UserError(f"{path}: lacks {', '.join(lacking)}")
    if scores["task"] != task:
        raise UserError(f"{path}: scores of task {scores['task']!r} lie in the folder of {task!r}")
    return scores


def read_transcript(evaluation: Path) -> str:
    """Read the first episode of an evaluation folder as text; empty if it was not kept."""
    path = evaluation / _TRANSCRIPT
    if not path.is_file():
        return ""
    return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")


def notes_on_weights(runs: Path, task: str) -> list[str]:
    """Describe evaluations of weights that are gone, evaluations that name no weights, and runs without evaluation."""
    lines = []
    unknown = []
    for folder in _evaluated(runs, task):
        if _is_outdated(folder):
            lines.append(f"{folder / 'evaluation'} is of weights that the run no longer has: left out; play again")
        elif _weights(folder) and _played(folder) is None:
            unknown.append(folder.name)
    if unknown:
        lines.append(f"{task}: scores of {', '.join(unknown)} do not say which weights played")
    trained = sorted(path for path in runs.joinpath(task).glob("[!.]*") if _weights(path))
    idle = [folder for folder in trained if not (folder / "evaluation" / "scores.json").is_file()]
    if idle:
        names = ", ".join(folder.name for folder in idle)
        lines.append(f"{task}: trained and not evaluated: {names}; lmrl evaluate --policy {idle[0]}")
    return lines


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
    played = _played(run)
    there = _weights(run)
    return bool(played and there) and played not in there


def record_evaluation(
    policy: Policy | LoadedPolicy,
    task: str,
    directory: Path | str,
    *,
    episodes: int,
    seed: int = 0,
    slots: int = 32,
    name: str | None = None,
    greedy: Callable[[], Policy | LoadedPolicy] | None = None,
    provenance: Mapping[str, Any] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    env: Mapping[str, Any] | None = None,
    selection: bool = False,
    ray: RayWorkers | None = None,
) -> dict[str, Any]:
    """Evaluate and write an evaluation's files, and for a task with a probe ``probe.json``, at once.

    Args:
        policy: the policy that plays.
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
        selection: play what settings are chosen by, see `evaluate`.
        ray: have processes of a Ray cluster play, see `evaluate`.

    Returns:
        The content of ``scores.json``.

    Raises:
        UserError: the folder holds something else than an evaluation; and as `evaluate`.

    Whatever is raised, Ctrl-C included, the episodes that were finished are kept in ``episodes.partial.parquet``, in
    the order in which they ended. The message of a `UserError` says so, and else a line on stderr.
    """
    check_evaluation_folder(directory)
    finished: list[Episode] = []

    def note(episode: Episode) -> None:
        finished.append(episode)
        if on_episode is not None:
            on_episode(episode)

    try:
        more: dict[str, Any] = {"provenance": provenance, "env": env, "selection": selection, "ray": ray}
        played = evaluate(policy, task, episodes, seed, slots, note, name=name, **more)
        return write_evaluation(played, directory, _probe(policy, greedy, task, env or {}))
    except BaseException as error:
        metadata = {"task": task, "policy": name or type(unwrapped(policy)).__name__, "seed": seed}
        kept = _keep(finished, Path(directory) / _PARTIAL, metadata)
        if not kept:
            raise
        if isinstance(error, UserError):
            raise UserError(f"{error}; {kept}") from error
        print(f"note: {kept}", file=sys.stderr)
        raise


def _keep(finished: Sequence[Episode], partial: Path, metadata: Mapping[str, Any]) -> str:
    """Write the episodes that were finished before a failure; say so, or nothing where none could be written.

    An episode may itself be what failed. One whose ``info`` cannot be written is kept with its number of illegal
    actions and its success alone.
    """
    writable = []
    for episode in finished:
        known = {"illegal": episode.illegal, "success": episode.success}
        versions = (episode, replace(episode, info=known))
        writable += [version for version in versions if _is_writable(version)][:1]
    if not writable:
        return ""
    try:
        write_episodes(partial, writable, metadata)
    except OSError:  # the disk is full: what failed first is what the user has to know
        return ""
    if len(writable) < len(finished):
        return f"{len(writable)} of the {len(finished)} episodes that were finished are in {partial}"
    return f"the {len(writable)} episodes that were finished are in {partial}"


def _is_writable(episode: Episode) -> bool:
    try:
        table_of([episode])
    except Exception:  # of JSON, Unicode and Arrow, many kinds
        return False
    return True


def _probe(
    policy: Policy | LoadedPolicy,
    greedy: Callable[[], Policy | LoadedPolicy] | None,
    task: str,
    arguments: Mapping[str, Any],
) -> Any:
    """Return the result of the task's probe; None if it has none, or if the policy cannot be probed."""
    probe = registry.probe(task)
    if greedy is None or probe is None:
        return None
    probed = greedy()
    if _weights_of(probed) != _weights_of(policy):  # a training has replaced them in the meantime
        return None
    return probe.run(unwrapped(probed), task, arguments)


def _weights_of(policy: Policy | LoadedPolicy) -> str | None:
    return policy.weights if isinstance(policy, LoadedPolicy) else None


def tuned_settings(run: Path) -> dict[str, float]:
    """The best settings of a run, as `tune` has left them.

    Raises:
        UserError: it was not tuned, or the file holds something else.
    """
    settings = read_json(run / TUNED).get("settings")
    if not isinstance(settings, dict) or not settings or not set(settings) <= set(CHOSEN):
        raise UserError(f"{run} has no {TUNED}; make it with: lmrl tune {run}")
    numbers = {name: value for name, value in settings.items() if isinstance(value, int | float)}
    if len(numbers) != len(settings):
        raise UserError(f"{run / TUNED}: settings must be numbers, got {settings}")
    return {name: float(value) for name, value in numbers.items()}
