"""The table of tasks and players beside the published one, and what follows from it."""

from collections.abc import Mapping, Sequence
from typing import Any

from lmrl.envs import registration
from lmrl.envs.scores import ALGORITHMS, normalize
from lmrl.evaluation.aggregates import Aggregate, aggregates
from lmrl.evaluation.intervals import Interval
from lmrl.evaluation.naming import label, ordered
from lmrl.evaluation.score import DATA, Score
from lmrl.evaluation.tables import Table, follows
from lmrl.evaluation.wording import UNKNOWN, number, with_interval

__all__ = ["COLUMNS", "overview"]

COLUMNS = ("bc", "filtered_bc", "mc", "ilql", "ppo", "online_filtered_bc", DATA, "random", "optimal")
"""Players of the table, those that others are compared with at the end."""


def overview(scores: Mapping[str, Mapping[str, Score]], algorithms: Sequence[str] = ()) -> dict[str, Any]:
    """Everything that the report says over all tasks.

    Args:
        scores: task to player to score.
        algorithms: what was asked for; gets a column of its own beside the `COLUMNS`.
    """
    wanted = [*COLUMNS, *(name for name in algorithms if name not in COLUMNS)]
    present = [name for name in wanted if any(name in players for players in scores.values())]
    return {
        "table": _table(scores, [*present, *(name for name in ALGORITHMS[-1:] if name not in present)]),
        "raw": _raw(scores, present),
        "aggregates": _aggregates(aggregates(scores, [name for name in ordered(present) if name != DATA])),
        "constants": _constants(scores),
        "errors": _errors(list(scores)),
    }


def _table(scores: Mapping[str, Mapping[str, Score]], names: Sequence[str]) -> Table:
    rows = [(task, *(_cell(task, name, players.get(name)) for name in names)) for task, players in scores.items()]
    return Table(("task", *map(label, names)), rows)


def _cell(task: str, name: str, ours: Score | None) -> str:
    """``100.0 / 99.9``: ours and the published one, if there is one."""
    published = registration.task(task).scores
    own = UNKNOWN if ours is None else number(ours.normalized)
    if name not in published.normalized:
        return own
    return f"{own} / {number(published.normalized[name])}" + ("" if follows(name, published) else " †")


def _raw(scores: Mapping[str, Mapping[str, Score]], names: Sequence[str]) -> Table:
    rows = []
    for task, players in scores.items():
        printed = registration.task(task).scores.raw
        cells = [UNKNOWN if name not in players else number(players[name].return_mean, 2) for name in names]
        shown = [
            f"{cell} / {number(printed[name], 2)}" if name in printed else cell
            for name, cell in zip(names, cells, strict=True)
        ]
        rows.append((task, *shown))
    return Table(("task", *map(label, names)), rows)


def _aggregates(found: Sequence[Aggregate]) -> Table:
    heads = ("player", "IQM of normalised scores [95 %, episodes]", "[95 %, seeds]", "beats BC [95 %, seeds]", "tasks")
    rows = [
        (
            label(one.name),
            with_interval(one.iqm, one.over_episodes),
            _interval(one.over_seeds, 1),
            f"{number(one.beats_bc, 2)} {_interval(one.beats_bc_over_seeds, 2)}"
            if one.beats_bc is not None
            else UNKNOWN,
            str(one.tasks),
        )
        for one in found
    ]
    return Table(heads, rows)


def _interval(interval: Interval | None, decimals: int) -> str:
    if interval is None:
        return UNKNOWN
    return f"[{number(interval.low, decimals)}, {number(interval.high, decimals)}]"


def _constants(scores: Mapping[str, Mapping[str, Score]]) -> Table:
    heads = ("task", "published minimum (0)", "average (50)", "maximum (100)", "our data", "our optimal player")
    rows = []
    for task, players in scores.items():
        scale = registration.task(task).scores
        ours = [players[name].return_mean if name in players else None for name in (DATA, "optimal")]
        shown = (scale.minimum, scale.average, scale.maximum, *ours)
        rows.append((task, *(number(value, 2) for value in shown)))
    return Table(heads, rows)


def _errors(tasks: Sequence[str]) -> Table:
    """Cells of the published table that do not follow from its own raw scores and constants."""
    rows = []
    for task in tasks:
        published = registration.task(task).scores
        for name in ALGORITHMS:
            if not follows(name, published):
                raw = published.raw[name]
                shown = (number(raw, 2), number(published.normalized[name]), number(normalize(raw, published)))
                rows.append((task, label(name), *shown))
    return Table(("task", "algorithm", "raw", "printed", "from raw and constants"), rows)
