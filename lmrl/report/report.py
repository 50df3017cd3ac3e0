"""The report: all evaluations next to the published numbers, as Markdown, HTML, tables and pictures."""

import csv
import io
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from lmrl.envs import registry
from lmrl.errors import UserError, terminated_by_exception
from lmrl.evaluation.aggregates import Aggregate, aggregates, improvements
from lmrl.evaluation.records import DATA, FIXES, Record, read_record_curves, read_records
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.evaluation.scores import Score, task_scores
from lmrl.report.order import differences, offline_rl, order
from lmrl.report.pages import render_html, render_markdown
from lmrl.report.pictures import draw
from lmrl.report.tables import columns, follows, footnotes, overview, play, task_words
from lmrl.report.wording import label, ordered
from lmrl.utils.files import check_may_replace, locked, replacing

__all__ = ["write_report", "write_table"]

_NUMBERS = (
    "task name episodes normalized own return_mean iqm success_rate length_mean illegal_rate excess last "
    "seconds cpu_seconds tokens"
).split()
_INTERVALS = "over_episodes over_seeds own_over_episodes return_over_episodes iqm_over_episodes success_ci".split()


def write_table(scores: Mapping[str, Mapping[str, Score]], out: Path, made: Mapping[str, Any]) -> None:
    """Write ``table.json`` and ``table.csv``.

    Args:
        scores: task to policy to score.
        out: folder.
        made: commands, versions and the algorithms that were asked for.
    """
    cells = []
    constants = {}
    over_bc = []
    for task, policies in scores.items():
        constants[task] = _constants(task)
        players = []
        for name in ordered(policies):
            score = policies[name]
            cells.append(_cell(score))
            if score.tuned is not None:
                cells.append(_cell(score.tuned))
            if score.by_seed:  # all but the dataset
                players.append(name)
        for improvement in improvements(policies, players):
            over_bc.append({"task": task, **improvement._asdict()})
    names = [name for name in columns(scores, made["algorithms"]) if name != DATA]
    record = {
        **made,
        "constants": constants,
        "fixes": list(map(asdict, FIXES)),
        "cells": cells,
        "aggregates": [_aggregate_cell(aggregate) for aggregate in aggregates(scores, names)],
        "improvements_over_bc": over_bc,
    }
    write_json(record, out / "table.json")
    with replacing(out / "table.csv") as file:
        file.write(_csv(cells).encode())


def _cell(score: Score) -> dict[str, Any]:
    published = registry.task(score.task).scores
    cell = {}
    for name in (*_NUMBERS, *_INTERVALS):
        cell[name] = getattr(score, name)
    return {
        **cell,
        "play": play(score),
        "seeds": list(score.seeds),
        "before": list(score.missing_fixes),
        "few": score.is_interval_too_narrow,
        "by_seed": list(score.by_seed),
        "own_by_seed": list(score.own_by_seed),
        "published": published.normalized.get(score.name),
        "published_return": published.raw.get(score.name),
        "published_follows": follows(score.name, published),
    }


def _aggregate_cell(aggregate: Aggregate) -> dict[str, Any]:
    cell = aggregate._asdict()
    cell["before"] = cell.pop("missing_fixes")  # as the cells of methods call it
    return cell


def _constants(task: str) -> dict[str, Any]:
    scale = registry.task(task).scores
    own = registry.task(task).own_scale
    published = {"minimum": scale.minimum, "average": scale.average, "maximum": scale.maximum, "note": scale.note}
    return {**published, "own": None if own is None else asdict(own)}


def _csv(cells: list[dict[str, Any]]) -> str:
    """Return the cells as CSV: an interval in two columns, a list as one text."""
    rows = []
    columns: dict[str, None] = {}  # an ordered set
    for cell in cells:
        row = {}
        for name, value in cell.items():
            if name in _INTERVALS:
                # CSV has no lists: an interval takes two columns.
                low, high = ("", "") if value is None else value
                row[f"{name}_low"] = low
                row[f"{name}_high"] = high
            elif isinstance(value, list):
                row[name] = " ".join(map(str, value))
            else:
                row[name] = value
        rows.append(row)
        columns |= dict.fromkeys(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


Results: TypeAlias = Mapping[str, Mapping[str, Mapping[int, Record]]]
"""Task to policy to training seed to record."""

_OFFLINE = ("bc", "filtered_bc", "mc", "ilql")
_WORDS: dict[str, Any] = {
    "captions": {
        "scores.png": "Scores on the published scale: dark as trained, light with tuned settings; thin lines are 95 % "
        "intervals over episodes, thick ones over training seeds, diamonds the published scores.",
        "learning_curves.png": "Mean return in interactive evaluation during training; of several seeds their mean "
        "and range. A seed that ended early, as one that fell does, keeps its last return.",
        "minutes.png": "The same over minutes of training on the machine that made the table, evaluation left out; "
        "what a run starts from is not counted.",
        "samples.png": "The same of online methods over the episodes that they had drawn.",
        "improvement.png": "How probably an episode of a player returns more than one of BC with the same training "
        "seed, ties counting half, with 95 % intervals over episodes; both with tuned settings.",
        "returns.png": "Share of the episodes that return at most so much: grey of the dataset, lines of the players.",
        "lengths.png": "Turns per episode, and the share of actions that the rules did not know.",
        "excess.png": "By how many nats an action the held-out loss of BC is above the entropy of the player who "
        "recorded the data, during training; a line per training seed.",
        "losses": "The terms of each loss, of the first training seed.",
    },
    "notes": (
        "Normalised scores are 0 at the published minimum, 50 at the published average and 100 at the published "
        "maximum, straight lines between; values outside of this range are not clipped, and a task without published "
        "constants has its mean return in their place. The average need not be that "
        "of the recorded episodes: what is said about a task's constants tells. A score over several training seeds is "
        "the mean of theirs.",
        "Our own scale is 0 at the return of the random player, 50 at that of the player who recorded the data and 100 "
        "at that of the best scripted player, each over whole episodes with our partners and opponents. All "
        "statements over several tasks use it.",
        "A policy plays as trained (sampling at temperature 1, values with the beta of their configuration), and with "
        "the temperature, top-p and beta that return most in games that no score counts: tuned.",
        "Excess is how many nats an action the held-out loss of BC ends above the entropy of the player who recorded "
        "the data, which no clone can be below.",
        "Two kinds of interval, never mixed. Over episodes: the training runs are given, and so are the starts where a "
        "task has fixed ones; each run's episodes are resampled, among those of their start where every start was "
        "played several times (95 % percentiles of 2,000 resamples; 10,000 for the scores of a single run). Over "
        "seeds: for further training runs, Student's interval, wide for a few of them; of runs that scored alike it "
        "has no width and is left out. Differences over seeds are those of runs with the same seed, else Welch's. "
        "Success rates have Wilson's interval, as if starts were drawn too.",
        "A reading, higher or lower, is over training seeds where both methods have three or more of the same ones. "
        "Else it is of these runs: how they differ, had they played other games.",
        "IQM is the interquartile mean, here over tasks and seeds; its interval over seeds resamples the seeds of each "
        "task within it (Agarwal et al. 2021). Tasks without a scale of their own do not enter it.",
        "Scores are those of the best checkpoint by return in play while training, with seeds that the final "
        "evaluation does not use; the column last checkpoint has those of the end.",
        "data is the dataset and its own returns, behaviour its player let loose, optimal a player that knows "
        "more than it is told or searches further.",
        "† marks printed scores that differ by more than half a point from what the paper's formula and constants "
        "make of its own raw score.",
        "Illegal is the share of actions that the rules did not know. Wall time is training and evaluation together; "
        "tokens learned counts each action token as often as it was learned from. Both are per training seed; "
        "episodes are those of all seeds.",
    ),
}


_TABLE = "table.json"
_ALWAYS = ("table.csv", "report.md", "report.html")
_WAIT = 60.0
"""Seconds to wait for another process that writes a report into the same folder."""


def write_report(
    runs: Path | str = "runs",
    out: Path | str = "report",
    tasks: Sequence[str] | None = None,
    algorithms: Sequence[str] | None = None,
) -> Path:
    """Write ``report.md``, ``report.html``, ``table.csv``, ``table.json``, pictures, and the log of the runs.

    Args:
        runs: folder of runs or of records, as of `lmrl.evaluation.records.read_records`.
        out: folder for the report; files of an earlier report are replaced, all others stay.
        tasks: names of tasks; None: all that have results.
        algorithms: names of algorithms that the report names as missing if they are. None: those of the last
            reproduction, or BC, filtered BC, MC and ILQL.

    Returns:
        The path of ``report.html``, which needs no other file.

    Raises:
        UserError: an unknown task, no results at all, a broken result file, a folder into which another process has
            been writing for a minute, or a folder in which files of other origin have the names of the report's files.
    """
    runs = Path(runs)
    out = Path(out)
    results = _read_results(runs, tasks)
    scores = {task: task_scores(runs, task, records) for task, records in results.items()}
    made = _made(runs, results)
    _check_folder(out)
    # Everything is written to a temporary folder first, so that a failure leaves an earlier report as it was.
    with (
        locked(out, "report folder", wait=_WAIT),
        terminated_by_exception(),
        TemporaryDirectory(prefix="lmrl-report-") as drawn,
    ):
        _write(runs, Path(drawn), results, scores, made, algorithms)
        _move(Path(drawn), out)
    return out / "report.html"


def _own_files(out: Path) -> list[str]:
    """Return the names of the files of the report in a folder, as its table notes them."""
    names = read_json(out / _TABLE).get("files", [])
    if not isinstance(names, list):
        return []
    # The file may have been edited: a path in it must not make the next report delete other files.
    return [name for name in names if isinstance(name, str) and Path(name).name == name]


def _check_folder(out: Path, written: Collection[str] = (_TABLE, *_ALWAYS)) -> None:
    check_may_replace(out, _own_files(out), "report", written=written)


def _move(drawn: Path, out: Path) -> None:
    """Move a finished report into its folder, so that no page there ever names a missing picture.

    Meanwhile the table always lists the files of the report: first those of the old and of the new report, at the end
    those of the new one.
    """
    new = sorted(os.listdir(drawn))
    old = _own_files(out)
    _check_folder(out, new)
    out.mkdir(parents=True, exist_ok=True)
    table = read_json(drawn / _TABLE)
    write_json({**table, "files": sorted({*old, *new})}, out / _TABLE)
    # Pictures come before the pages that show them.
    for name in sorted(new, key=lambda name: name in _ALWAYS):
        if name != _TABLE:
            with replacing(out / name) as file:
                file.write((drawn / name).read_bytes())
    # What only the old report had is deleted when nothing refers to it any more.
    for name in old:
        if name not in new:
            (out / name).unlink(missing_ok=True)
    write_json({**table, "files": new}, out / _TABLE)


def _write(
    runs: Path,
    out: Path,
    results: Results,
    scores: Mapping[str, Mapping[str, Score]],
    made: dict[str, Any],
    algorithms: Sequence[str] | None,
) -> None:
    # Pictures first: the pages contain those that were drawn.
    curves = {task: read_record_curves(runs, task) for task in results}
    pictures = draw(results, curves, scores, out)
    write_table(scores, out, made)
    expected = tuple(algorithms or made["algorithms"] or _OFFLINE)
    offline, offline_words = offline_rl(scores)
    over_all = {**overview(scores, expected), "offline_rl": offline, "offline_rl_words": offline_words}
    # Notes explain only the marks that occur in the text of the tables.
    shown = str(over_all)
    tables = []
    players: list[Score] = []
    for task, records in results.items():
        # Transcripts and commands are those of the first seed, scores those of all.
        first_seeds = {name: next(iter(seeds.values())) for name, seeds in records.items()}
        words = task_words(task, first_seeds, scores[task], expected)
        words["order"] = order(task, scores[task])
        words["differences"] = differences(task, scores[task])
        tables.append(words)
        shown += str(words["results"])
        players += scores[task].values()
    notes = [*_WORDS["notes"], *footnotes(players, shown)]
    has_benchmark = any(task.name in results for task in registry.BENCHMARK)
    title = "LMRL-Gym, reproduced" if has_benchmark else "Results"
    page = {**_WORDS, **made, "title": title, "overview": over_all, "tasks": tables, "notes": notes}
    for name, text in (("md", render_markdown(page, pictures)), ("html", render_html(page, pictures))):
        with replacing(out / f"report.{name}") as file:
            file.write(text.encode())
    if (runs / "reproduce.log").is_file():
        shutil.copyfile(runs / "reproduce.log", out / "log.txt")


def _read_results(runs: Path, tasks: Sequence[str] | None) -> Results:
    chosen = [registry.task(task).name for task in tasks] if tasks is not None else list(registry.tasks())
    results = {}
    for task in chosen:
        records = read_records(runs, task)
        if records:
            results[task] = records
    if not results:
        raise UserError(f"no results of {', '.join(chosen)} in {runs}; make some with: lmrl reproduce {chosen[0]}")
    return results


def _made(runs: Path, results: Results) -> dict[str, Any]:
    """Return commands, versions and seeds, all that occur in any run."""
    versions: dict[str, set[str]] = {}
    seeds = set[int]()
    for records in results.values():
        for by_seed in records.values():
            seeds.update(by_seed)
            for record in by_seed.values():
                for package, version in record.scores.get("provenance", {}).get("versions", {}).items():
                    versions.setdefault(package, set()).add(str(version))
    tasks = ", ".join(map(label, results))
    facts = []
    sorted_versions = {}
    for package, seen in versions.items():
        sorted_versions[package] = sorted(seen)
        facts.append(f"{package} {' and '.join(sorted(seen))}")
    facts.append(f"seed {', '.join(map(str, sorted(seeds)))}")
    order = read_json(runs / "reproduce.json")
    return {
        "made_with": f"{tasks}. {', '.join(facts)}.",
        "made_by": order.get("commands", []),
        "algorithms": order.get("algorithms", []),
        "versions": sorted_versions,
    }
