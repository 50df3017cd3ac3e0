"""The report: everything that was evaluated, next to the published numbers, as Markdown, HTML, tables and pictures."""

import csv
import io
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from lmrl.envs import registry
from lmrl.errors import UserError, terminated_by_exception
from lmrl.evaluation.aggregates import aggregates, improvements
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

_WHOLE = (
    "task name episodes normalized own return_mean iqm success_rate length_mean illegal_rate excess last "
    "seconds cpu_seconds tokens"
).split()
_INTERVALS = "over_episodes over_seeds own_over_episodes return_over_episodes iqm_over_episodes success_ci".split()


def write_table(scores: Mapping[str, Mapping[str, Score]], out: Path, made: Mapping[str, Any]) -> None:
    """Write both files.

    Args:
        scores: task to player to score.
        out: folder.
        made: commands, versions and the algorithms that were asked for.
    """
    rows = [
        _row(one)
        for players in scores.values()
        for name in ordered(players)
        for one in (players[name], players[name].tuned)
        if one is not None
    ]
    players = [name for name in columns(scores, made["algorithms"]) if name != DATA]
    record = {
        **made,
        "constants": {task: _constants(task) for task in scores},
        "fixes": [asdict(fix) for fix in FIXES],
        "cells": rows,
        "aggregates": [one._asdict() for one in aggregates(scores, players)],
        "improvements_over_bc": [
            {"task": task, **one._asdict()} for task, of in scores.items() for one in improvements(of, _trained(of))
        ],
    }
    write_json(record, out / "table.json")
    with replacing(out / "table.csv") as file:
        file.write(_csv(rows).encode())


def _row(score: Score) -> dict[str, Any]:
    published = registry.task(score.task).scores
    return {
        **{name: getattr(score, name) for name in _WHOLE},
        **{name: getattr(score, name) for name in _INTERVALS},
        "play": play(score),
        "seeds": list(score.seeds),
        "before": list(score.before),
        "few": score.few,
        "by_seed": list(score.by_seed),
        "own_by_seed": list(score.own_by_seed),
        "published": published.normalized.get(score.name),
        "published_return": published.raw.get(score.name),
        "published_follows": follows(score.name, published),
    }


def _constants(task: str) -> dict[str, Any]:
    scale = registry.task(task).scores
    own = registry.task(task).own_scale
    published = {"minimum": scale.minimum, "average": scale.average, "maximum": scale.maximum, "note": scale.note}
    return {**published, "own": None if own is None else asdict(own)}


def _trained(players: Mapping[str, Score]) -> list[str]:
    return [name for name in ordered(players) if players[name].by_seed]


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    flat = [dict(_flat(row)) for row in rows]
    writer = csv.DictWriter(
        text, list(dict.fromkeys(name for row in flat for name in row)), restval="", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if name in _INTERVALS:
            low, high = ("", "") if value is None else value
            yield from ((f"{name}_low", low), (f"{name}_high", high))
        elif isinstance(value, list):
            yield name, " ".join(map(str, value))
        else:
            yield name, value


Found: TypeAlias = Mapping[str, Mapping[str, Mapping[int, Record]]]
"""Task to player to training seed to record."""

_OFFLINE = ("bc", "filtered_bc", "mc", "ilql")
_WORDS: dict[str, Any] = {
    "captions": {
        "scores.png": "Scores on the published scale: dark as trained, light with tuned settings; thin lines are 95 % "
        "intervals over episodes, thick ones over training seeds, diamonds the published scores.",
        "learning_curves.png": "Mean return in interactive evaluation during training; of several seeds their mean "
        "and range.",
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
        "at that of the best scripted player, each over whole episodes with our second speakers and opponents. All "
        "statements over several tasks use it.",
        "A policy plays as trained (sampling at temperature 1, values with the beta of their configuration), and with "
        "the temperature, top-p and beta that return most in games that no score counts: tuned.",
        "Excess is how many nats an action the held-out loss of BC ends above the entropy of the player who recorded "
        "the data, which no clone can be below.",
        "Two kinds of interval, never mixed. Over episodes: the training runs are given, and so are the starts where a "
        "task has fixed ones; each run's episodes are resampled, among those of their start where every start was "
        "played several times (2,000 resamples, 95 % percentiles). Over seeds: for further training "
        "runs, Student's interval, wide for a few of them; of runs that scored alike it has no width and is left out. "
        "Differences over seeds are those of runs with the same seed, else Welch's. Success rates have Wilson's "
        "interval, as if starts were drawn too.",
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
"""Seconds for another process that writes a report into the same folder."""


def write_report(
    runs: Path | str = "runs",
    out: Path | str = "report",
    tasks: Sequence[str] | None = None,
    algorithms: Sequence[str] | None = None,
) -> Path:
    """Write ``report.md``, ``report.html``, ``table.csv``, ``table.json``, pictures, and ``log.txt`` of the making.

    Args:
        runs: folder of runs or of records, as of `lmrl.evaluation.records.read_records`.
        out: folder for the report; files of an earlier one are replaced, all others stay.
        tasks: which tasks; all that have results if left out.
        algorithms: which ones to expect: the report says of each whether it is missing. Those of the last
            reproduction, or BC, filtered BC, MC and ILQL, if left out.

    Returns:
        The path of ``report.html``, which needs no other file.

    Raises:
        UserError: an unknown task, no results at all, a broken result file, a folder into which another process has
            been writing for a minute, or one that has files of the report's names that no report has made.
    """
    runs = Path(runs)
    out = Path(out)
    found = _found(runs, tasks)
    scores = {task: task_scores(runs, task, players) for task, players in found.items()}
    made = _made(runs, found)
    _check_folder(out)
    with (
        locked(out, "report folder", wait=_WAIT),
        terminated_by_exception(),
        TemporaryDirectory(prefix="lmrl-report-") as drawn,
    ):
        _write(runs, Path(drawn), found, scores, made, algorithms)
        _move(Path(drawn), out)
    return out / "report.html"


def _own_files(out: Path) -> list[str]:
    """Return the names of the files of the report in a folder, as its table notes them."""
    names = read_json(out / _TABLE).get("files", [])
    if not isinstance(names, list):
        return []
    return [name for name in names if isinstance(name, str) and Path(name).name == name]


def _check_folder(out: Path, written: Collection[str] = (_TABLE, *_ALWAYS)) -> None:
    check_may_replace(out, _own_files(out), "report", written=written)


def _move(drawn: Path, out: Path) -> None:
    """Move a finished report to where it belongs, so that a page there never names a picture that is missing.

    The table notes at every moment which files are of a report: first those of the old and the new one, at the end
    those of the new one alone.
    """
    new = sorted(path.name for path in drawn.iterdir())
    old = _own_files(out)
    _check_folder(out, new)
    out.mkdir(parents=True, exist_ok=True)
    table = read_json(drawn / _TABLE)
    write_json({**table, "files": sorted({*old, *new})}, out / _TABLE)
    # Pictures before the pages that show them.
    for name in sorted(new, key=lambda name: name in _ALWAYS):
        if name != _TABLE:
            with replacing(out / name) as file:
                file.write((drawn / name).read_bytes())
    for name in old:
        if name not in new:
            (out / name).unlink(missing_ok=True)
    write_json({**table, "files": new}, out / _TABLE)


def _write(
    runs: Path,
    out: Path,
    found: Found,
    scores: Mapping[str, Mapping[str, Score]],
    made: dict[str, Any],
    algorithms: Sequence[str] | None,
) -> None:
    curves = {task: read_record_curves(runs, task) for task in found}
    pictures = draw(found, curves, scores, out)
    write_table(scores, out, made)
    expected = tuple(algorithms or made["algorithms"] or _OFFLINE)
    offline, offline_words = offline_rl(scores)
    over_all = {**overview(scores, expected), "offline_rl": offline, "offline_rl_words": offline_words}
    tables = _tasks(found, scores, expected)
    shown = str(over_all) + str([words["results"] for words in tables])
    notes = [*_WORDS["notes"], *footnotes([one for players in scores.values() for one in players.values()], shown)]
    title = "LMRL-Gym, reproduced" if found.keys() & {row.name for row in registry.BENCHMARK} else "Results"
    words = {**_WORDS, **made, "title": title, "overview": over_all, "tasks": tables, "notes": notes}
    for name, text in (("md", render_markdown(words, pictures)), ("html", render_html(words, pictures))):
        with replacing(out / f"report.{name}") as file:
            file.write(text.encode())
    if (runs / "reproduce.log").is_file():
        shutil.copyfile(runs / "reproduce.log", out / "log.txt")


def _found(runs: Path, tasks: Sequence[str] | None) -> Found:
    chosen = [registry.task(task).name for task in tasks] if tasks is not None else list(registry.tasks())
    found = {}
    for task in chosen:
        players = read_records(runs, task)
        if players:
            found[task] = players
    if not found:
        raise UserError(f"no results of {', '.join(chosen)} in {runs}; make some with: lmrl reproduce {chosen[0]}")
    return found


def _tasks(found: Found, scores: Mapping[str, Mapping[str, Score]], expected: Sequence[str]) -> list[dict[str, Any]]:
    firsts = {task: {name: next(iter(of.values())) for name, of in players.items()} for task, players in found.items()}
    return [
        {
            **task_words(task, firsts[task], scores[task], expected),
            "order": order(task, scores[task]),
            "differences": differences(task, scores[task]),
        }
        for task in found
    ]


def _made(runs: Path, found: Found) -> dict[str, Any]:
    """Commands, versions and seeds; where runs differ, all that occur are named."""
    results = [result for players in found.values() for by_seed in players.values() for result in by_seed.values()]
    versions: dict[str, set[str]] = {}
    for result in results:
        for package, version in result.scores.get("provenance", {}).get("versions", {}).items():
            versions.setdefault(package, set()).add(str(version))
    made = [f"{package} {' and '.join(sorted(seen))}" for package, seen in versions.items()]
    seeds = sorted({seed for players in found.values() for by_seed in players.values() for seed in by_seed})
    order = read_json(runs / "reproduce.json")
    return {
        "made_with": f"{', '.join(map(label, found))}. "
        + ", ".join([*made, f"seed {', '.join(map(str, seeds))}"])
        + ".",
        "made_by": order.get("commands", []),
        "algorithms": order.get("algorithms", []),
        "versions": {package: sorted(seen) for package, seen in versions.items()},
    }
