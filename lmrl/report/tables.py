"""Tables and sentences of the report, about one task and about all, without markup."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from lmrl.envs import registry
from lmrl.envs.scores import ALGORITHMS, Scores, normalize
from lmrl.errors import counted
from lmrl.evaluation.aggregates import Aggregate, aggregates
from lmrl.evaluation.intervals import Interval
from lmrl.evaluation.records import DATA, FIXES, Record
from lmrl.evaluation.scores import Score
from lmrl.report.wording import (
    BEFORE,
    FEW,
    NO_SPREAD,
    UNKNOWN,
    count,
    duration,
    is_known,
    label,
    number,
    ordered,
    percent,
    with_interval,
)
from lmrl.utils.configuration import value_at

__all__ = [
    "Table",
    "columns",
    "commands",
    "follows",
    "footnotes",
    "named",
    "overview",
    "play",
    "scored",
    "task_words",
    "without_empty",
]


def commands(result: Record) -> str:
    """The commands that make this result again, with seed and wall time of each."""
    scores = result.scores
    lines = [label(result.algorithm)]
    steps: dict[str, Any] = {name: step for name, step in result.timing.items() if isinstance(step, dict)}
    for name, step in steps.items():
        lines.append(f"  {step.get('command', name)}    # {duration(step.get('seconds'))}")
    if "evaluate" not in steps:
        made = f"lmrl evaluate {scores['task']} --policy {scores['policy']} --episodes {scores['episodes']}"
        lines.append(f"  {made} --seed {scores['seed']} --out {result.folder.as_posix()}/evaluation")
    lines.append(f"  seed {scores['seed']}, {counted(scores['episodes'], 'episode')}")
    made_with = scores.get("provenance", {})
    lines += [f"  {name}: {_flat(value)}" for name, value in made_with.items() if value]
    return "\n".join(lines)


def named(ours: Score) -> str:
    """The player's label, marked if some of its runs are older than a fix that changes their numbers."""
    return label(ours.name) + _older(ours)


def _older(ours: Score | Aggregate) -> str:
    return f" {BEFORE}" if ours.before else ""


def scored(ours: Score) -> str:
    """The normalised score with its interval over episodes, which is marked if it rests on too few games."""
    return with_interval(ours.normalized, ours.over_episodes) + (f" {FEW}" if ours.few else "")


def footnotes(scores: Iterable[Score], shown: str) -> list[str]:
    """Explain the marks of a table.

    Args:
        scores: the players of the table.
        shown: the table as text; only marks that it holds are explained.
    """
    names = {name for one in scores if label(one.name) in shown for name in one.before}
    notes = []
    if BEFORE in shown:
        fixes = [f"{fix.words} (before {fix.version}, {fix.date})" for fix in FIXES if fix.name in names]
        notes.append(
            f"{BEFORE} Some of these runs, or of those that they start from, are older than a fix: {'; '.join(fixes)}. "
            "The same runs today give other numbers."
        )
    if FEW in shown:
        notes.append(
            f"{FEW} Too narrow to trust: it rests on fewer than eight games as extreme as the most extreme one of a "
            "trained policy in this task, and one such game moves the score by half a point or more."
        )
    return notes


def _flat(value: Any) -> str:
    return ", ".join(f"{name} {item}" for name, item in value.items()) if isinstance(value, dict) else str(value)


_FOLLOWS = 0.5
"""Points by which a printed normalised score may differ from what its raw score gives; rounding explains less."""


class Table(NamedTuple):
    """Cells of plain text."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note_last: bool = False
    """The last column holds sentences, not numbers."""


def without_empty(table: Table, *heads: str) -> Table:
    """The table without columns of dashes; without rows if nothing is left next to the first column.

    Args:
        table: any.
        heads: only columns with such a head are left out; without any, all but the first may be.
    """
    kept = [
        place
        for place, head in enumerate(table.heads)
        if place == 0 or (heads and head not in heads) or any(row[place] != UNKNOWN for row in table.rows)
    ]
    rows = [[row[place] for place in kept] for row in table.rows]
    return table._replace(heads=[table.heads[place] for place in kept], rows=rows if len(kept) > 1 else [])


def task_words(
    task: str, results: Mapping[str, Record], scores: Mapping[str, Score], expected: Sequence[str]
) -> dict[str, Any]:
    """All that the report's templates show of one task.

    Args:
        task: its name.
        results: finished evaluations of the first seed, by name.
        scores: over all seeds, by name.
        expected: algorithms that ought to be among them.
    """
    record = registry.task(task)
    names = ordered(results)
    published = record.scores
    plot = registry.probe_plot(task)
    missing = [name for name in expected if name not in results]
    return {
        "title": f"{task}: {record.description}",
        "results": _results(scores, published),
        "warnings": [f"{label(name)}: {words}" for name in names for words in results[name].scores.get("warnings", ())],
        "missing": _missing(task, missing) if missing else "",
        "probe_picture": "" if plot is None else plot.file_name(task),
        "probe_caption": "" if plot is None else plot.caption,
        "losses_picture": f"losses_{task}.png",
        "published": _published(published),
        "constants": _constants(published),
        "tokens": _tokens(results["bc"].config) if "bc" in results else "",
        "commands": [commands(results[name]) for name in names],
        "transcripts": [(label(name), results[name].transcript) for name in names],
    }


def _tokens(config: Mapping[str, Any]) -> str:
    """Name the tokens that a BC run reads and says; empty without a configuration, or if it starts from a model."""
    settings = value_at(OmegaConf.create(dict(config)), "model.init_args")
    if not settings:
        return ""
    if settings.get("pretrained"):
        return ""
    name = settings.get("tokenizer") or "the default tokenizer"
    task = settings.get("task_tokens")
    with_texts = f", with the texts of {task if isinstance(task, str) else task['name']} as tokens" if task else ""
    return f"Tokens: those of {name}{with_texts}."


def _results(scores: Mapping[str, Score], published: Scores) -> Table:
    heads = (
        "player",
        "play",
        "normalised [95 %, episodes]",
        "[95 %, seeds]",
        "published",
        "own scale [95 %]",
        "last checkpoint",
        "return [95 %]",
        "published",
        "success [95 %]",
        "turns",
        "illegal",
        "excess",
        "episodes",
        "tokens learned",
        "core time",
        "wall time",
    )
    both = ((scores[name], scores[name].tuned) for name in ordered(scores))
    whole = Table(heads, [_result(one, published) for pair in both for one in pair if one is not None])
    return without_empty(whole, "published", "own scale [95 %]")


def _result(ours: Score, published: Scores) -> tuple[str, ...]:
    name = ours.name
    low_high = ours.over_seeds
    unknown = f"[{NO_SPREAD}]" if len(ours.seeds) > 1 else UNKNOWN
    return (
        named(ours),
        play(ours),
        scored(ours),
        unknown if low_high is None else _interval(low_high, 1),
        number(published.normalized.get(name)) + ("" if follows(name, published) else " †"),
        UNKNOWN if ours.own is None else with_interval(ours.own, ours.own_over_episodes or ()),
        number(ours.last),
        with_interval(ours.return_mean, ours.return_over_episodes, 2),
        number(published.raw.get(name), 2),
        with_interval(ours.success_rate, ours.success_ci, scale=100) + " %",
        number(ours.length_mean),
        percent(ours.illegal_rate, 2),
        number(ours.excess, 3),
        f"{ours.episodes:,}" if name == DATA else str(len(ours.seeds) * ours.episodes),
        count(ours.tokens),
        duration(ours.cpu_seconds),
        duration(ours.seconds),
    )


def play(ours: Score) -> str:
    """With which settings: as trained (at temperature 1, with the configuration's beta), or those that were chosen.

    Nothing of data and scripted players, which have none.
    """
    if ours.settings:
        return "; ".join(dict.fromkeys(words or "as trained" for words in ours.settings))
    return "" if ours.name in (DATA, *registry.policy_names(ours.task)) else "as trained"


def _missing(task: str, names: Sequence[str]) -> str:
    shown = ", ".join(map(label, names))
    return f"no evaluation of {shown} was found; made by: lmrl reproduce {task} --algorithms {' '.join(names)}"


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
    if not (published.any_scale or published.raw):
        return f"The task has no published constants: its normalised scores are mean returns. {published.note}".strip()
    source = "Published numbers: Abdulhai et al., ICML 2025, Tables 2 (normalised), 4 (raw) and 5 (constants)."
    if published.average is None or published.maximum is None:
        return f"{source} {published.note}".strip()
    scale = (
        f"The scale: {number(published.minimum, 2)} is 0 points, {number(published.average, 2)} is 50, "
        f"{number(published.maximum, 2)} is 100."
    )
    return f"{scale} {source} {published.note}".strip()


_COLUMNS = ("bc", "filtered_bc", "mc", "ilql", "ppo", "online_filtered_bc", "ilql_to_ppo", DATA, "random", "optimal")
"""Players of the benchmark's table, those that others are compared with at the end."""
_MOST = 14
"""Players that tables over all tasks have room for."""


def columns(scores: Mapping[str, Mapping[str, Score]], algorithms: Sequence[str] = ()) -> list[str]:
    """Players that have a column of their own in tables over all tasks: those of the benchmark first, then the others.

    All that have played. Where these are more than 14, of the others only those that were asked for, and those that
    this package does not know by name.

    Args:
        scores: task to player to score.
        algorithms: what was asked for.
    """
    played = {name for players in scores.values() for name in players}
    others = [name for name in ordered(played) if name not in _COLUMNS]
    if len(played) > _MOST:
        others = [name for name in others if name in algorithms or not is_known(name)]
    return [*(name for name in _COLUMNS if name in played), *others]


def overview(scores: Mapping[str, Mapping[str, Score]], algorithms: Sequence[str] = ()) -> dict[str, Any]:
    """Everything that the report says over all tasks.

    Args:
        scores: task to player to score.
        algorithms: what was asked for, as of `columns`.
    """
    present = columns(scores, algorithms)
    others = ordered({name for players in scores.values() for name in players} - {*present})
    published = any(registry.task(task).scores.raw for task in scores)
    return {
        "table": _table(scores, [*present, *(name for name in ALGORITHMS[-1:] if name not in present)]),
        "table_words": _table_words(list(scores)),
        "others": f"In the tables of the tasks: {', '.join(map(label, others))}." if others else "",
        "own": _own(scores, present),
        "raw": _raw(scores, present),
        "raw_words": "Mean undiscounted returns" + (", ours / those of the paper's Table 4." if published else "."),
        "aggregates": _aggregates(aggregates(scores, [name for name in ordered(present) if name != DATA])),
        "constants": _scale_constants(scores),
        "errors": _errors(list(scores)),
    }


def _table_words(tasks: Sequence[str]) -> str:
    unscaled = [task for task in tasks if not registry.task(task).scores.any_scale]
    words = []
    if len(unscaled) < len(tasks):
        words.append(
            "Scores on the published scale: ours as trained, ours with tuned settings / those of the paper's Table 2; "
            "† marks those that do not follow from its own constants."
        )
    if unscaled:
        of = f" of {', '.join(unscaled)}" if words else ""
        have = "task has" if len(unscaled) == 1 else "tasks have"
        words.append(f"Mean returns{of}: the {have} no published constants.")
    return " ".join(words)


def _table(scores: Mapping[str, Mapping[str, Score]], names: Sequence[str]) -> Table:
    rows = [(task, *(_cell(task, name, players.get(name)) for name in names)) for task, players in scores.items()]
    return without_empty(Table(("task", *map(label, names)), rows))


def _own(scores: Mapping[str, Mapping[str, Score]], names: Sequence[str]) -> Table:
    rows = [
        (
            task,
            *(
                number(players[name].chosen.own) + _older(players[name]) if name in players else UNKNOWN
                for name in names
            ),
        )
        for task, players in scores.items()
        if registry.task(task).own_scale is not None
    ]
    return without_empty(Table(("task", *map(label, names)), rows))


def _cell(task: str, name: str, ours: Score | None) -> str:
    """``16.4, 65.2 / 79.9``: ours as trained and tuned, and the published one, if there are such."""
    published = registry.task(task).scores
    own = UNKNOWN if ours is None else number(ours.normalized)
    if ours is not None and ours.tuned is not None:
        own += f", {number(ours.tuned.normalized)}"
    if ours is not None:
        own += _older(ours)
    if name not in published.normalized:
        return own
    return f"{own} / {number(published.normalized[name])}" + ("" if follows(name, published) else " †")


def _raw(scores: Mapping[str, Mapping[str, Score]], names: Sequence[str]) -> Table:
    rows = []
    for task, players in scores.items():
        printed = registry.task(task).scores.raw
        cells = [
            number(players[name].return_mean, 2) + _older(players[name]) if name in players else UNKNOWN
            for name in names
        ]
        shown = [
            f"{cell} / {number(printed[name], 2)}" if name in printed else cell
            for name, cell in zip(names, cells, strict=True)
        ]
        rows.append((task, *shown))
    return Table(("task", *map(label, names)), rows)


def _aggregates(found: Sequence[Aggregate]) -> Table:
    iqm = "IQM of scores on our own scale [95 %, episodes]"
    heads = ("player", iqm, "[95 %, seeds]", "beats BC [95 %, seeds]", "tasks")
    rows = [
        (
            label(one.name) + _older(one),
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


def _scale_constants(scores: Mapping[str, Mapping[str, Score]]) -> Table:
    """Next to our own means; empty if no task has constants."""
    heads = ("task", "published minimum (0)", "average (50)", "maximum (100)", "our data", "our optimal player")
    rows = []
    for task, players in scores.items():
        scale = registry.task(task).scores
        ours = [players[name].return_mean if name in players else None for name in (DATA, "optimal")]
        minimum = None if scale.average is None else scale.minimum
        shown = (minimum, scale.average, scale.maximum, *ours)
        rows.append((task, *(number(value, 2) for value in shown)))
    known = any(registry.task(task).scores.average is not None for task in scores)
    return without_empty(Table(heads, rows if known else []))


def _errors(tasks: Sequence[str]) -> Table:
    """Cells of the published table that do not follow from its own raw scores and constants."""
    rows = []
    for task in tasks:
        published = registry.task(task).scores
        for name in ALGORITHMS:
            if not follows(name, published):
                raw = published.raw[name]
                shown = (number(raw, 2), number(published.normalized[name]), number(normalize(raw, published)))
                rows.append((task, label(name), *shown))
    return Table(("task", "algorithm", "raw", "printed", "from raw and constants"), rows)
