"""Tables and sentences of the report, on each task and over all tasks, without markup."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
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


def commands(result: Record) -> str:
    """Return the commands that make a result again, with seed and wall time of each."""
    scores = result.scores
    lines = [label(result.algorithm)]
    has_evaluation = False
    for name, step in result.timing.items():
        if isinstance(step, dict):
            lines.append(f"  {step.get('command', name)}    # {duration(step.get('seconds'))}")
            has_evaluation = has_evaluation or name == "evaluate"
    if not has_evaluation:  # evaluations outside of a table are not timed
        words = f"lmrl evaluate {scores['task']} --policy {scores['policy']} --episodes {scores['episodes']}"
        lines.append(f"  {words} --seed {scores['seed']} --out {result.folder.as_posix()}/evaluation")
    lines.append(f"  seed {scores['seed']}, {counted(scores['episodes'], 'episode')}")
    # What the evaluation was made with: versions, decoding settings, opponent.
    for name, value in scores.get("provenance", {}).items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        if value:
            lines.append(f"  {name}: {value}")
    return "\n".join(lines)


def named(ours: Score | Aggregate) -> str:
    """Return the label of a policy, marked if some of its runs are older than a fix that changes their numbers."""
    return label(ours.name) + _mark_of_fixes(ours)


def _mark_of_fixes(ours: Score | Aggregate) -> str:
    return f" {BEFORE}" if ours.missing_fixes else ""


def scored(ours: Score) -> str:
    """Return the normalised score with its interval over episodes, marked if that rests on too few games."""
    return with_interval(ours.normalized, ours.over_episodes) + (f" {FEW}" if ours.is_interval_too_narrow else "")


def footnotes(scores: Iterable[Score], shown: str) -> list[str]:
    """Explain the marks of a table.

    Args:
        scores: the policies of the table.
        shown: the table as text; only marks that it holds are explained.
    """
    names = set[str]()
    for score in scores:
        if label(score.name) in shown:
            names.update(score.missing_fixes)
    notes = []
    if BEFORE in shown:
        fixes = [f"{fix.words} (before {fix.version})" for fix in FIXES if fix.name in names]
        notes.append(
            f"{BEFORE} Some runs, or their starts, are older than a fix: {'; '.join(fixes)}. "
            "They would score differently today."
        )
    if FEW in shown:
        notes.append(
            f"{FEW} Too narrow to trust: fewer than eight extreme games decide it, and one of them moves the score by "
            "half a point or more."
        )
    return notes


_FOLLOWS = 0.5
"""Points by which a printed normalised score may differ from what its raw score gives; rounding explains less."""


class Table(NamedTuple):
    """Cells of plain text."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note_last: bool = False
    """Whether the last column holds sentences, not numbers."""


def without_empty(table: Table, *heads: str) -> Table:
    """Leave out columns of dashes, and all rows if nothing is left next to the first column.

    Args:
        table: any table.
        heads: leave out only columns with these heads; none: any but the first.
    """
    # (rows, columns); of a table without rows, all columns but the first count as empty.
    cells = np.array(table.rows, dtype=object).reshape(len(table.rows), len(table.heads))
    is_empty = (cells == UNKNOWN).all(axis=0)
    is_empty[0] = False
    if heads:
        is_empty &= np.isin(table.heads, heads)
    kept = ~is_empty
    rows = cells[:, kept].tolist() if kept.sum() > 1 else []
    return table._replace(heads=np.array(table.heads, dtype=object)[kept].tolist(), rows=rows)


def task_words(
    task: str, results: Mapping[str, Record], scores: Mapping[str, Score], expected: Sequence[str]
) -> dict[str, Any]:
    """Return all that the report's templates show of one task.

    Args:
        task: its name.
        results: finished evaluations of the first seed, by name.
        scores: scores over all seeds, by name.
        expected: algorithms that ought to be among them.
    """
    record = registry.task(task)
    published = record.scores
    plot = registry.probe_plot(task)
    warnings = []
    shown_commands = []
    transcripts = []
    for name in ordered(results):
        result = results[name]
        for warning in result.scores.get("warnings", ()):
            warnings.append(f"{label(name)}: {warning}")
        shown_commands.append(commands(result))
        transcripts.append((label(name), result.transcript))
    missing = [name for name in expected if name not in results]
    return {
        "title": f"{task}: {record.description}",
        "results": _results(scores, published),
        "warnings": warnings,
        "missing": _missing(task, missing) if missing else "",
        "probe_picture": "" if plot is None else plot.file_name(task),
        "probe_caption": "" if plot is None else plot.caption,
        "losses_picture": f"losses_{task}.png",
        "published": _published(published),
        "constants": _constants(published),
        "tokens": _tokens(results["bc"].config) if "bc" in results else "",
        "commands": shown_commands,
        "transcripts": transcripts,
    }


def _tokens(config: Mapping[str, Any]) -> str:
    """Name the tokenizer of a BC run; empty without a configuration, or if the run starts from a model."""
    settings = value_at(OmegaConf.create(dict(config)), "model.init_args")
    if not settings or settings.get("pretrained"):  # the model brings its own tokenizer
        return ""
    name = settings.get("tokenizer") or "the default tokenizer"
    task = settings.get("task_tokens")
    with_texts = f", with the texts of {task if isinstance(task, str) else task['name']} as tokens" if task else ""
    return f"Tokens: those of {name}{with_texts}."


def _results(scores: Mapping[str, Score], published: Scores) -> Table:
    """Return a row per policy, as trained, and where it was tuned another row."""
    rows = []
    for name in ordered(scores):
        score = scores[name]
        rows.append(_result(score, published))
        if score.tuned is not None:
            rows.append(_result(score.tuned, published))
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
    return without_empty(Table(heads, rows), "published", "own scale [95 %]")


def _result(ours: Score, published: Scores) -> tuple[str, ...]:
    name = ours.name
    # Without an interval there is a single seed, or the seeds have equal scores.
    over_seeds = _interval(ours.over_seeds, 1)
    if ours.over_seeds is None and len(ours.seeds) > 1:
        over_seeds = f"[{NO_SPREAD}]"
    return (
        named(ours),
        play(ours),
        scored(ours),
        over_seeds,
        _published_score(name, published),
        UNKNOWN if ours.own is None else with_interval(ours.own, ours.own_over_episodes or ()),
        number(ours.last),
        with_interval(ours.return_mean, ours.return_over_episodes, 2),
        number(published.raw.get(name), 2),
        with_interval(ours.success_rate, ours.success_ci, scale=100) + " %",
        number(ours.length_mean),
        percent(ours.illegal_rate, 2),
        number(ours.excess, 3),
        f"{ours.episodes:,}" if name == DATA else str(sum(map(len, ours.returns))),
        count(ours.tokens),
        duration(ours.cpu_seconds),
        duration(ours.seconds),
    )


def play(ours: Score) -> str:
    """Return the decoding settings: as trained (temperature 1, the configuration's beta), or those that were chosen.

    Empty for the dataset and scripted policies, which have none.
    """
    if ours.settings:
        return "; ".join(dict.fromkeys(words or "as trained" for words in ours.settings))
    return "" if ours.name in (DATA, *registry.policy_names(ours.task)) else "as trained"


def _missing(task: str, names: Sequence[str]) -> str:
    shown = ", ".join(map(label, names))
    return f"no evaluation of {shown} was found; made by: lmrl reproduce {task} --algorithms {' '.join(names)}"


def _published(published: Scores) -> Table:
    heads = ("algorithm", "raw", "normalised, printed", "normalised, from raw", "remark")
    rows = []
    for name, raw in published.raw.items():
        printed = number(published.normalized.get(name))
        remark = "" if follows(name, published) else "† does not follow from the paper's own constants"
        rows.append((label(name), number(raw, 2), printed, number(normalize(raw, published)), remark))
    return Table(heads, rows, note_last=True)


def _published_score(name: str, published: Scores) -> str:
    """Return the printed normalised score of a method, marked if it does not follow from its raw score."""
    return number(published.normalized.get(name)) + ("" if follows(name, published) else " †")


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


# Columns of the benchmark's table; the last three are what others are compared with.
_COLUMNS = ("bc", "filtered_bc", "mc", "ilql", "ppo", "online_filtered_bc", "ilql_to_ppo", DATA, "random", "optimal")
_MOST = 14
"""The number of policies that tables over all tasks have room for."""


def columns(scores: Mapping[str, Mapping[str, Score]], algorithms: Sequence[str] = ()) -> list[str]:
    """Return the policies that have a column in tables over all tasks: those of the benchmark first, then the others.

    If more than 14 policies have been evaluated, the others are only those that were asked for, and those that have no
    label in this package.

    Args:
        scores: task to policy to score.
        algorithms: policies that were asked for.
    """
    evaluated = set(chain.from_iterable(scores.values()))
    benchmark = [name for name in _COLUMNS if name in evaluated]
    others = []
    for name in ordered(evaluated.difference(_COLUMNS)):
        if len(evaluated) <= _MOST or name in algorithms or not is_known(name):
            others.append(name)
    return benchmark + others


def overview(scores: Mapping[str, Mapping[str, Score]], algorithms: Sequence[str] = ()) -> dict[str, Any]:
    """Return all that the report says over all tasks.

    Args:
        scores: task to policy to score.
        algorithms: policies that were asked for, as of `columns`.
    """
    shown = columns(scores, algorithms)
    others = ordered(set(chain.from_iterable(scores.values())).difference(shown))
    methods = ordered(set(shown) - {DATA})
    # GPT-4, the last of the paper's columns, is shown even where it was not evaluated here.
    with_published = list(dict.fromkeys([*shown, ALGORITHMS[-1]]))
    published = any(registry.task(task).scores.raw for task in scores)
    # Tasks of users need not have a scale of their own.
    scaled = {task: policies for task, policies in scores.items() if registry.task(task).own_scale is not None}
    return {
        "table": without_empty(_by_task(scores, with_published, _as_trained_and_tuned, _published_if_any)),
        "table_words": _table_words(list(scores)),
        "others": f"In the tables of the tasks: {', '.join(map(label, others))}." if others else "",
        "own": without_empty(_by_task(scaled, shown, _on_own_scale)),
        "raw": _by_task(scores, shown, _mean_return, _published_return),
        "raw_words": "Mean undiscounted returns" + (", ours / those of the paper's Table 4." if published else "."),
        "aggregates": _aggregates(aggregates(scores, methods)),
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


def _by_task(
    scores: Mapping[str, Mapping[str, Score]],
    names: Sequence[str],
    cell: Callable[[Score], str],
    published: Callable[[str, Scores], str] | None = None,
) -> Table:
    """Return a table with a row for each task and a column for each policy: ours / the published number."""
    rows = []
    for task, policies in scores.items():
        cells = [task]
        for name in names:
            ours = UNKNOWN
            if name in policies:
                ours = cell(policies[name]) + _mark_of_fixes(policies[name])
            theirs = "" if published is None else published(name, registry.task(task).scores)
            cells.append(f"{ours} / {theirs}" if theirs else ours)
        rows.append(cells)
    return Table(("task", *map(label, names)), rows)


def _as_trained_and_tuned(ours: Score) -> str:
    return number(ours.normalized) + ("" if ours.tuned is None else f", {number(ours.tuned.normalized)}")


def _on_own_scale(ours: Score) -> str:
    return number(ours.chosen.own)


def _mean_return(ours: Score) -> str:
    return number(ours.return_mean, 2)


def _published_if_any(name: str, published: Scores) -> str:
    return _published_score(name, published) if name in published.normalized else ""


def _published_return(name: str, published: Scores) -> str:
    return number(published.raw[name], 2) if name in published.raw else ""


def _aggregates(methods: Sequence[Aggregate]) -> Table:
    iqm = "IQM of scores on our own scale [95 %, episodes]"
    heads = ("player", iqm, "[95 %, seeds]", "beats BC [95 %, seeds]", "tasks")
    rows = []
    for aggregate in methods:
        beats_bc = UNKNOWN
        if aggregate.beats_bc is not None:
            beats_bc = f"{number(aggregate.beats_bc, 2)} {_interval(aggregate.beats_bc_over_seeds, 2)}"
        rows.append(
            (
                named(aggregate),
                with_interval(aggregate.iqm, aggregate.over_episodes),
                _interval(aggregate.over_seeds, 1),
                beats_bc,
                str(aggregate.tasks),
            )
        )
    return Table(heads, rows)


def _interval(interval: Interval | None, decimals: int) -> str:
    if interval is None:
        return UNKNOWN
    return f"[{number(interval.low, decimals)}, {number(interval.high, decimals)}]"


def _scale_constants(scores: Mapping[str, Mapping[str, Score]]) -> Table:
    """Compare the published constants with our mean returns; empty if no task has constants."""
    heads = ("task", "published minimum (0)", "average (50)", "maximum (100)", "our data", "our optimal player")
    rows = []
    any_constants = False
    for task, policies in scores.items():
        scale = registry.task(task).scores
        any_constants = any_constants or scale.average is not None
        constants = [None if scale.average is None else scale.minimum, scale.average, scale.maximum]
        cells = [task]
        for constant in constants:
            cells.append(number(constant, 2))
        for name in (DATA, "optimal"):
            cells.append(number(policies[name].return_mean, 2) if name in policies else UNKNOWN)
        rows.append(cells)
    return without_empty(Table(heads, rows if any_constants else []))


def _errors(tasks: Sequence[str]) -> Table:
    """List the scores of the published table that do not follow from its own raw scores and constants."""
    rows = []
    for task in tasks:
        published = registry.task(task).scores
        for name in ALGORITHMS:
            if not follows(name, published):
                raw = published.raw[name]
                printed = published.normalized[name]
                from_raw = number(normalize(raw, published))
                rows.append((task, label(name), number(raw, 2), number(printed), from_raw))
    return Table(("task", "algorithm", "raw", "printed", "from raw and constants"), rows)
