"""What the report says about one task: tables and sentences, as plain text without any markup."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lmrl.envs import registration
from lmrl.envs.scores import Scores, normalize
from lmrl.evaluation.naming import label, ordered
from lmrl.evaluation.results import Result
from lmrl.evaluation.score import DATA, Score
from lmrl.evaluation.stratified import FloatArray, Resampled, stratified_interval
from lmrl.evaluation.transcripts import commands, transcript
from lmrl.evaluation.wording import MINUS, UNKNOWN, count, duration, number, percent, with_interval

__all__ = ["Table", "follows", "task_words"]

_COMPARED = ("filtered_bc", "mc", "ilql", "ppo", "online_filtered_bc")
"""Algorithms whose difference from BC is of interest."""
_FOLLOWS = 0.5
_ROUNDING = 1e-9  # of means; a difference has to be larger
"""Points by which a printed normalised score may differ from what its raw score gives; rounding explains less."""


class Table(NamedTuple):
    """Cells of plain text."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note_last: bool = False
    """The last column holds sentences, not numbers."""


def task_words(
    task: str, results: Mapping[str, Result], scores: Mapping[str, Score], expected: Sequence[str]
) -> dict[str, Any]:
    """All that the report's templates show of one task.

    Args:
        task: its name.
        results: finished evaluations of the first seed, by name.
        scores: over all seeds, by name.
        expected: algorithms that ought to be among them.
    """
    record, names = registration.task(task), ordered(results)
    published = record.scores
    missing = [name for name in expected if name not in results]
    return {
        "title": f"{task}: {record.description}",
        "results": _results(scores, published),
        "warnings": [f"{label(name)}: {words}" for name in names for words in results[name].scores.get("warnings", ())],
        "missing": _missing(task, missing) if missing else "",
        "differences": _differences(scores, published),
        "maze_picture": f"maze_values_{task}.png",
        "losses_picture": f"losses_{task}.png",
        "published": _published(published),
        "constants": _constants(published),
        "commands": [commands(results[name]) for name in names],
        "transcripts": [(label(name), transcript(next(results[name].episodes()))) for name in names],
    }


def _results(scores: Mapping[str, Score], published: Scores) -> Table:
    heads = (
        "player",
        "normalised [95 %, episodes]",
        "[95 %, seeds]",
        "published",
        "last checkpoint",
        "return [95 %]",
        "published",
        "success [95 %]",
        "turns",
        "illegal",
        "episodes",
        "tokens learned",
        "wall time",
    )
    return Table(heads, [_result(scores[name], published) for name in ordered(scores)])


def _result(ours: Score, published: Scores) -> tuple[str, ...]:
    name, low_high = ours.name, ours.over_seeds
    return (
        label(name),
        with_interval(ours.normalized, ours.over_episodes),
        UNKNOWN if low_high is None else f"[{number(low_high.low)}, {number(low_high.high)}]",
        number(published.normalized.get(name)) + ("" if follows(name, published) else " †"),
        number(ours.last),
        with_interval(ours.return_mean, ours.return_over_episodes, 2),
        number(published.raw.get(name), 2),
        with_interval(ours.success_rate, ours.success_ci, scale=100) + " %",
        number(ours.length_mean),
        percent(ours.illegal_rate, 2),
        f"{ours.episodes:,}" if name == DATA else str(len(ours.seeds) * ours.episodes),
        count(ours.tokens),
        duration(ours.seconds),
    )


def _missing(task: str, names: Sequence[str]) -> str:
    shown = ", ".join(map(label, names))
    return f"no evaluation of {shown} was found; made by: lmrl reproduce {task} --algorithms {' '.join(names)}"


def _differences(scores: Mapping[str, Score], published: Scores) -> Table:
    heads = ("difference", "normalised [95 %, episodes]", "published", "return [95 %, episodes]", "reading")
    compared = [name for name in _COMPARED if name in scores] if "bc" in scores else []
    rows = []
    for name in compared:
        ours, base, printed = scores[name], scores["bc"], published.normalized
        both = [*ours.samples, *base.samples]
        points = stratified_interval(both, partial(_gap, count=len(ours.returns), published=published))
        raw = stratified_interval(both, partial(_gap, count=len(ours.returns)))
        rows.append(
            (
                f"{label(name)} {MINUS} BC",
                with_interval(ours.normalized - base.normalized, points),
                number(printed[name] - printed["bc"] if {name, "bc"} <= printed.keys() else None),
                with_interval(ours.return_mean - base.return_mean, raw, 2),
                "higher" if raw.low > _ROUNDING else "lower" if raw.high < -_ROUNDING else "not told apart",
            )
        )
    return Table(heads, rows, note_last=True)


def _gap(parts: list[Resampled], count: int, published: Scores | None = None) -> FloatArray:
    """(R,): mean of the first `count` samples minus that of the others."""
    means = np.array([part.mean() for part in parts])
    if published is not None:
        means = np.vectorize(partial(normalize, scores=published))(means)
    gap: FloatArray = means[:count].mean(axis=0) - means[count:].mean(axis=0)
    return gap


def _published(published: Scores) -> Table:
    heads = ("algorithm", "raw", "normalised, printed", "normalised, from raw", "remark")
    rows = [
        (
            label(name),
            number(raw, 2),
            number(published.normalized.get(name)),
            number(normalize(raw, published)),
            "" if follows(name, published) else "† does not follow from the paper's own constants",
        )
        for name, raw in published.raw.items()
    ]
    return Table(heads, rows, note_last=True)


def follows(name: str, published: Scores) -> bool:
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
