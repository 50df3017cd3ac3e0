"""What the report says about one task: tables and sentences, as plain text without any markup."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lmrl.envs import registration
from lmrl.envs.scores import Scores, normalize
from lmrl.evaluation.intervals import bootstrap_difference
from lmrl.evaluation.naming import label, ordered
from lmrl.evaluation.results import Result
from lmrl.evaluation.transcripts import commands, transcript
from lmrl.evaluation.wording import MINUS, duration, number, percent, with_interval

__all__ = ["Table", "task_words"]

_COMPARED = ("filtered_bc", "mc", "ilql", "ppo", "online_filtered_bc")
"""Algorithms whose difference from BC is of interest."""
_FOLLOWS = 0.5
"""Points by which a printed normalised score may differ from what its raw score gives; rounding explains less."""


class Table(NamedTuple):
    """Cells of plain text."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note_last: bool = False
    """The last column holds sentences, not numbers."""


def task_words(task: str, results: Mapping[str, Result], expected: Sequence[str]) -> dict[str, Any]:
    """All that the report's templates show of one task.

    Args:
        task: its name.
        results: finished evaluations by name.
        expected: algorithms that ought to be among them.
    """
    record, names = registration.task(task), ordered(results)
    published = record.scores
    missing = [name for name in expected if name not in results]
    return {
        "title": f"{task}: {record.description}",
        "results": _results(results, published),
        "warnings": [f"{label(name)}: {words}" for name in names for words in results[name].scores.get("warnings", ())],
        "missing": _missing(task, missing) if missing else "",
        "differences": _differences(results, published),
        "maze_picture": f"maze_values_{task}.png",
        "published": _published(published),
        "constants": _constants(published),
        "commands": [commands(results[name]) for name in names],
        "transcripts": [(label(name), transcript(next(results[name].episodes()))) for name in names],
    }


def _results(results: Mapping[str, Result], published: Scores) -> Table:
    heads = (
        "player",
        "normalised [95 %]",
        "published",
        "return [95 %]",
        "published",
        "success [95 %]",
        "turns",
        "illegal",
        "episodes",
        "wall time",
    )
    return Table(heads, [_result(results[name], published) for name in ordered(results)])


def _result(result: Result, published: Scores) -> tuple[str, ...]:
    scores, name = result.scores, result.name
    return (
        label(name),
        with_interval(scores["normalized"], scores["normalized_ci"]),
        number(published.normalized.get(name)) + ("" if _follows(name, published) else " †"),
        with_interval(scores["return_mean"], scores["return_ci"], 2),
        number(published.raw.get(name), 2),
        with_interval(scores["success_rate"], scores["success_ci"], scale=100) + " %",
        number(scores["length_mean"]),
        percent(scores["illegal_rate"], 2),
        str(scores["episodes"]),
        duration(_seconds(result)),
    )


def _seconds(result: Result) -> float | None:
    """Training and evaluation together, where measured."""
    found = [step["seconds"] for step in result.timing.values() if isinstance(step, dict) and "seconds" in step]
    return sum(found) if found else None


def _missing(task: str, names: Sequence[str]) -> str:
    shown = ", ".join(map(label, names))
    return f"no evaluation of {shown} was found; made by: lmrl reproduce {task} --algorithms {' '.join(names)}"


def _differences(results: Mapping[str, Result], published: Scores) -> Table:
    heads = ("difference", "normalised [95 %]", "published", "return [95 %]", "reading")
    compared = [name for name in _COMPARED if name in results] if "bc" in results else []
    returns = {
        name: [episode.total_reward for episode in results[name].episodes()] for name in ("bc", *compared) if compared
    }
    rows = []
    for name in compared:
        ours, base, printed = results[name].scores, results["bc"].scores, published.normalized
        points = bootstrap_difference(returns[name], returns["bc"], scale=lambda mean: normalize(mean, published))
        raw = bootstrap_difference(returns[name], returns["bc"])
        rows.append(
            (
                f"{label(name)} {MINUS} BC",
                with_interval(ours["normalized"] - base["normalized"], points),
                number(printed[name] - printed["bc"] if {name, "bc"} <= printed.keys() else None),
                with_interval(ours["return_mean"] - base["return_mean"], raw, 2),
                "higher" if raw.low > 0 else "lower" if raw.high < 0 else "not told apart",
            )
        )
    return Table(heads, rows, note_last=True)


def _published(published: Scores) -> Table:
    heads = ("algorithm", "raw", "normalised, printed", "normalised, from raw", "remark")
    rows = [
        (
            label(name),
            number(raw, 2),
            number(published.normalized.get(name)),
            number(normalize(raw, published)),
            "" if _follows(name, published) else "† does not follow from the paper's own constants",
        )
        for name, raw in published.raw.items()
    ]
    return Table(heads, rows, note_last=True)


def _follows(name: str, published: Scores) -> bool:
    """Whether the printed normalised score is what formula and constants make of the printed raw one."""
    if name not in published.raw or name not in published.normalized:
        return True
    return abs(normalize(published.raw[name], published) - published.normalized[name]) <= _FOLLOWS


def _constants(published: Scores) -> str:
    source = "Published numbers: Abdulhai et al., ICML 2025, Tables 2 (normalised), 4 (raw) and 5 (constants)."
    if published.average is None or published.maximum is None:
        return f"{source} {published.note}".strip()
    scale = (
        f"The scale: {number(published.minimum, 2)} is 0 points, {number(published.average, 2)} is 50, "
        f"{number(published.maximum, 2)} is 100."
    )
    return f"{scale} {source} {published.note}".strip()
