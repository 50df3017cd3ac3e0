"""The files that an evaluation writes into the folder of a run, and which of them are of the weights it has now.

A run lives in ``runs/<task>/<name>``::

    evaluation/episodes.parquet    all episodes
    evaluation/scores.json         the scores; all files of the folder are from one evaluation
    evaluation/episodes.csv        return, length, success and illegal actions of each episode
    evaluation/transcript.txt      the first episode as text
    evaluation/probe.json          tasks with a probe: what the policy does and expects in states of interest
    evaluation/*.partial.*         of an evaluation that was interrupted: its finished episodes, and their scores
    metrics.csv                    learning curves (here or in a folder below)
    evaluation_last/               evaluation of the last checkpoint, where it is not the best
    evaluation_tuned/              evaluation with the settings of tuned.json
    evaluation_recorded/           scores.json of `lmrl evaluate FILE`, which plays nothing
    tuned.json                     the best decoding settings that `lmrl tune` found
    timing.json                    commands, seeds and wall times
    cell.json                      cells of a table: a summary, written when the cell is finished
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmrl.data.records import table_of
from lmrl.data.storage import read_episodes, read_metadata, write_episodes
from lmrl.envs import registry
from lmrl.envs.registry import probe
from lmrl.errors import UserError, counted
from lmrl.evaluation.episode_table import EpisodeTable, write_table
from lmrl.evaluation.evaluate import Evaluation, RayWorkers, evaluate
from lmrl.evaluation.result_json import SCORE_KEYS, read_json, write_json
from lmrl.types import Described, Episode, LoadedPolicy, Policy, unwrapped
from lmrl.utils.files import check_may_replace, replacing, replacing_folder

_TABLE = "episodes.csv"
_TRANSCRIPT = "transcript.txt"
_PARTIAL = "episodes.partial.parquet"
_PARTIAL_SCORES = "scores.partial.json"
_INTERRUPTED = (_PARTIAL, _PARTIAL_SCORES)
_EVALUATION = ("episodes.parquet", "scores.json", "probe.json", "episodes.html", *_INTERRUPTED, _TABLE, _TRANSCRIPT)
"""Files of an evaluation; `lmrl view` adds ``episodes.html``."""


def write_evaluation(evaluation: Evaluation, directory: Path | str, probed: Any = None) -> dict[str, Any]:
    """Write the files of an evaluation, with ``probe.json`` if something was probed, and return the scores.

    The new folder replaces that of an earlier evaluation when it is complete. After a failure the earlier one is still
    there, unchanged.

    Raises:
        UserError: as `check_evaluation_folder`.
    """
    check_evaluation_folder(directory)
    scores = evaluation.scores()
    hook = probe(evaluation.task)
    # The arguments of the environment, as in a dataset: to replay and draw the episodes, and to train on them.
    env = evaluation.provenance.get("env", {})
    metadata = {"task": evaluation.task, "policy": evaluation.policy, "seed": evaluation.seed, "env": env}
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
    """Make sure that an evaluation replaces nothing but an earlier evaluation.

    Raises:
        UserError: the folder holds something else; the message names it.
    """
    directory = Path(directory)
    if Path.cwd().is_relative_to(os.path.realpath(directory)):
        raise UserError(f"{directory} is the working directory or holds it: name a folder below for the evaluation")
    scores = directory / "scores.json"
    # Without scores of ours, only a rest of an interrupted evaluation may be replaced.
    has_scores = scores.is_file() and {"task", "episodes", "return_mean"} <= read_json(scores).keys()
    check_may_replace(directory, _EVALUATION if has_scores else _INTERRUPTED, "evaluation")


def current_evaluations(runs: Path, task: str) -> list[Path]:
    """Return the run folders of a task that hold an evaluation of the weights that they have now, sorted by name."""
    return [run for run in _evaluated(runs, task) if not is_outdated(run / "evaluation")]


def read_scores(evaluation: Path, task: str) -> dict[str, Any]:
    """Read ``scores.json`` of an evaluation folder.

    Raises:
        UserError: naming the file, if it is broken, lacks a key, or is of another task.
    """
    path = evaluation / "scores.json"
    scores = read_json(path)
    missing = ", ".join(key for key in SCORE_KEYS if key not in scores)
    if missing:
        raise UserError(f"{path}: lacks {missing}")
    if scores["task"] != task:
        raise UserError(f"{path}: scores of task {scores['task']!r} lie in the folder of {task!r}")
    return scores


def read_transcript(evaluation: Path) -> str:
    """Read the first episode of an evaluation folder as text; empty if it was not kept."""
    path = evaluation / _TRANSCRIPT
    if not path.is_file():
        return ""
    return path.read_text(encoding="utf-8", errors="replace").rstrip("\n")


def transcript(episode: Episode, turns: int = 12) -> str:
    """Return an episode as a dialogue: ``>`` before actions, their rewards in brackets; long episodes are cut."""
    lines = _marked("", episode.observations[0])
    for turn in range(min(turns, len(episode))):
        lines += _marked("> ", episode.actions[turn], f"   [{_number(episode.rewards[turn])}]")
        lines += _marked("", episode.observations[turn + 1])
    if len(episode) > turns:
        lines.append(f"... and {counted(len(episode) - turns, 'more turn')}")
    ending = "cut short"
    if episode.success:
        ending = "solved"
    elif episode.terminated:
        ending = "ended by the rules"
    length = counted(len(episode), "turn")
    lines.append(f"({ending}; return {_number(episode.total_reward)}, {length}, {episode.illegal} illegal)")
    return "\n".join(lines)


def _marked(mark: str, text: str, end: str = "") -> list[str]:
    """Return the lines of a text, cut to 600 characters, with a mark before each and `end` after the last."""
    shown = text if len(text) <= 600 else f"{text[:600]} ... ({len(text)} characters)"
    lines = [f"{mark}{line}" for line in shown.splitlines() or [""]]
    lines[-1] += end
    return lines


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def notes_on_weights(runs: Path, task: str) -> list[str]:
    """Describe evaluations of weights that are gone, evaluations that name no weights, and runs without evaluation."""
    lines = []
    unknown = []
    for run in _evaluated(runs, task):
        if is_outdated(run / "evaluation"):
            lines.append(f"{run / 'evaluation'} is of weights that the run no longer has: left out; play again")
        elif _weights(run) and _evaluated_weights(run / "evaluation") is None:
            unknown.append(run.name)
    if unknown:
        lines.append(f"{task}: scores of {', '.join(unknown)} do not say which weights played")
    # Weights without scores: trained, or trained again and its evaluation deleted.
    not_evaluated = []
    for run in sorted(runs.joinpath(task).glob("[!.]*")):
        if _weights(run) and not (run / "evaluation" / "scores.json").is_file():
            not_evaluated.append(run)
    if not_evaluated:
        names = ", ".join(run.name for run in not_evaluated)
        lines.append(f"{task}: trained and not evaluated: {names}; lmrl evaluate --policy {not_evaluated[0]}")
    return lines


def _evaluated(runs: Path, task: str) -> list[Path]:
    """Return the run folders of a task with an evaluation, sorted; hidden ones are half written."""
    scores = sorted(runs.joinpath(task).glob("[!.]*/evaluation/scores.json"))
    return [path.parent.parent for path in scores]


def _weights(run: Path) -> set[str]:
    """Return the hashes of the weights that a run has; none if there are no weights or they name no hash."""
    hashes = set()
    # The folders are `best`, `last`, and those that a budget of compute has kept.
    for manifest in run.glob("*/lmrl.json"):
        made_with = read_json(manifest).get("made_with")
        if isinstance(made_with, dict) and "weights" in made_with:
            hashes.add(str(made_with["weights"]))
    return hashes


def _evaluated_weights(evaluation: Path) -> str | None:
    """Return the hash of the weights that were evaluated; None if the scores name none."""
    weights = read_json(evaluation / "scores.json").get("provenance", {}).get("weights")
    return None if weights is None else str(weights)


def is_outdated(evaluation: Path) -> bool:
    """Return whether an evaluation in a run folder is of weights that the run has lost, as by further training."""
    evaluated = _evaluated_weights(evaluation)
    weights = _weights(evaluation.parent)
    return bool(evaluated and weights) and evaluated not in weights


def record_evaluation(
    policy: Policy | LoadedPolicy,
    task: str,
    directory: Path | str,
    *,
    episodes: int,
    seed: int = 0,
    slots: int | None = None,
    name: str | None = None,
    greedy: Callable[[], Policy | LoadedPolicy] | None = None,
    provenance: Mapping[str, Any] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
    on_turns: Callable[[int], None] | None = None,
    env: Mapping[str, Any] | None = None,
    selection: bool = False,
    ray: RayWorkers | None = None,
    resume: bool | None = None,
) -> dict[str, Any]:
    """Evaluate a policy and write the files of the evaluation; ``probe.json`` if the task has a probe.

    After any exception, Ctrl-C included, the finished episodes are kept in ``episodes.partial.parquet``, in the order
    in which they ended, and their scores in ``scores.partial.json``. The message of a `UserError` says so; for other
    exceptions a line on stderr does.

    The report reads the files from a `directory` of the form ``runs/<task>/<name>/evaluation``. `greedy` makes the same
    policy at temperature 0, for the task's probe (`lmrl.envs.task.Probe`). With `resume` the episodes that an
    interrupted evaluation has kept there are not played again. If that evaluation has since finished, nothing is
    played; if it has kept nothing, all is. None: the command has no ``--resume``, so the message does not mention it.
    All other arguments are those of `evaluate`.

    Returns:
        The content of ``scores.json``.

    Raises:
        UserError: the folder holds something else than an evaluation; what should be resumed is of another policy, seed
            or setting; and as `evaluate`.
    """
    check_evaluation_folder(directory)
    arguments = {"task": task, "policy": name, "seed": seed, "env": env or {}, "selection": selection}
    facts = _facts(policy, arguments, provenance)
    finished: list[Episode] = []

    def note(episode: Episode) -> None:
        finished.append(episode)
        if on_episode is not None:
            on_episode(episode)

    partial = Path(directory) / _PARTIAL
    if resume and partial.is_file():
        _check_same(partial, read_metadata(partial), facts)
        before = list(read_episodes(partial))
        if len(before) > episodes:
            raise UserError(f"{partial} holds {len(before)} episodes, more than {episodes}: begin anew without resume")
        for episode in before:
            note(episode)
    elif resume:
        # A cluster starts a job again without looking whether it was interrupted.
        scores = _complete(Path(directory) / "scores.json", {**facts, "episodes": episodes})
        if scores is not None:
            return scores
    try:
        more: dict[str, Any] = {"provenance": provenance, "env": env, "selection": selection, "ray": ray}
        more |= {"on_turns": on_turns, "finished": tuple(finished)}
        evaluation = evaluate(policy, task, episodes, seed, slots, note, name=name, **more)
        return write_evaluation(evaluation, directory, _probe(greedy, task, env or {}))
    except BaseException as error:
        kept = _keep(finished, episodes, Path(directory), facts)
        if not kept:
            raise
        if resume is not None:
            kept = f"{kept}; the same command with --resume continues"
        if isinstance(error, UserError):
            raise UserError(f"{error}; {kept}") from error
        print(f"note: {kept}", file=sys.stderr)
        raise


def _facts(
    policy: Policy | LoadedPolicy, arguments: Mapping[str, Any], provenance: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what episodes depend on, JSON-like: arguments of `evaluate`, the weights, and settings of the policy."""
    facts = {**(provenance or {}), **arguments}
    player = unwrapped(policy)
    facts["policy"] = facts["policy"] or type(player).__name__
    facts["weights"] = _weights_of(policy)
    if isinstance(player, Described):
        facts["player"] = player.describe()
    as_in_a_file: dict[str, Any] = json.loads(json.dumps(facts, default=repr))
    return as_in_a_file


def _complete(path: Path, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the scores of a finished evaluation with the same facts; None if there is none.

    Raises:
        UserError: a fact differs.
    """
    scores = read_json(path)
    if not scores:
        return None
    before = {"selection": False, **scores.get("provenance", {})}
    for key in ("task", "policy", "seed", "episodes"):
        before[key] = scores[key]
    # What a player says about itself changes while it plays.
    _check_same(path, before, {key: value for key, value in facts.items() if key != "player"})
    return scores


def _check_same(path: Path, before: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    for key, value in facts.items():
        if before.get(key) != value:
            raise UserError(
                f"{path} was played with another {key} ({before.get(key)!r:.200}, now {value!r:.200}): resume it as "
                "it was, or leave out resume to start again"
            )


def _keep(finished: Sequence[Episode], planned: int, directory: Path, facts: Mapping[str, Any]) -> str:
    """Write the episodes that were finished before a failure, and their scores.

    An episode may itself be the cause of the failure. If the ``info`` of an episode cannot be written, the episode is
    kept with its number of illegal actions and its success alone.

    Returns:
        A sentence that says how many were kept; empty if none.
    """
    writable = []
    for episode in finished:
        reduced = replace(episode, info={"illegal": episode.illegal, "success": episode.success})
        if _is_writable(episode):
            writable.append(episode)
        elif _is_writable(reduced):
            writable.append(reduced)
    if not writable:
        return ""
    partial = directory / _PARTIAL
    if _count_same(partial, facts) > len(writable):
        return f"the episodes in {partial}, which an earlier try has finished, are still there"
    # The disk may be full. The user needs to know the first failure, not this one.
    try:
        write_episodes(partial, writable, facts)
    except OSError:
        return ""
    with suppress(OSError):
        scores = Evaluation(facts["task"], facts["policy"], tuple(writable), facts["seed"], 0, facts).scores()
        warning = f"interrupted after {len(writable)} of {planned} episodes: those that end soon come first"
        scores |= {"planned": planned, "warnings": [warning, *scores["warnings"]]}
        write_json(scores, directory / _PARTIAL_SCORES)
    return f"{len(writable)} of {planned} episodes are finished and kept in {partial}"


def _count_same(partial: Path, facts: Mapping[str, Any]) -> int:
    """Return how many episodes an earlier try of the same evaluation has kept."""
    try:
        _check_same(partial, read_metadata(partial), facts)
        return sum(1 for _ in read_episodes(partial))
    except (UserError, OSError):  # there is none, or one of another evaluation
        return 0


def _is_writable(episode: Episode) -> bool:
    try:
        table_of([episode])
    except Exception:  # JSON, Unicode and Arrow raise many kinds
        return False
    return True


def _probe(
    greedy: Callable[[], Policy | LoadedPolicy] | None,
    task: str,
    arguments: Mapping[str, Any],
) -> Any:
    """Return the result of the task's probe; None if it has none, or if the policy cannot be probed."""
    probe = registry.probe(task)
    if greedy is None or probe is None:
        return None
    return probe.run(unwrapped(greedy()), task, arguments)


def _weights_of(policy: Policy | LoadedPolicy) -> str | None:
    return policy.weights if isinstance(policy, LoadedPolicy) else None
