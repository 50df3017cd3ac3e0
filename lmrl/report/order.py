"""Which method does better: all that learned in order, differences from BC, and offline RL beside filtered BC."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest

import numpy as np

from lmrl.envs import registry
from lmrl.envs.scores import Scores, normalize
from lmrl.evaluation.aggregates import improvements
from lmrl.evaluation.intervals import (
    FloatArray,
    Interval,
    Resampled,
    Sample,
    improvement,
    improvement_interval,
    stratified_interval,
)
from lmrl.evaluation.records import DATA
from lmrl.evaluation.scores import Score
from lmrl.report.tables import Table, play, without_empty
from lmrl.report.wording import MINUS, UNKNOWN, label, number, ordered, with_interval

__all__ = ["differences", "offline_rl", "order", "side_by_side"]

_BC, _FILTERED, _OFFLINE_RL, _PROMPTED = "bc", "filtered_bc", ("mc", "ilql"), "gpt4"
_ROUNDING = 1e-9  # of means; a difference has to be larger


def _learned(task: str, scores: Mapping[str, Score]) -> list[str]:
    """Names of the players that were trained."""
    others = {DATA, _PROMPTED, *registry.policy_names(task)}
    return [name for name in ordered(scores) if name not in others]


def order(task: str, scores: Mapping[str, Score]) -> Table:
    """All that learned, the best first, each with the settings that were chosen, and how probably it beats the next.

    Over episodes: that one of its episodes returns more than one of the next. Over seeds: that a training run scores
    above one of the next, where both have several.

    Args:
        task: name of the task.
        scores: player to score.
    """
    names = sorted(_learned(task, scores), key=lambda name: -scores[name].chosen.return_mean)
    heads = ("player", "play", "normalised [95 %, episodes]", "beats the next, episodes [95 %]", "seeds [95 %]", "runs")
    rows = []
    for name, following in zip_longest(names, names[1:]):
        one = scores[name].chosen
        shown = label(name), play(one), with_interval(one.normalized, one.over_episodes)
        rows.append((*shown, *_beats(scores, name, following), str(len(one.seeds))))
    return Table(heads, rows)


def _beats(scores: Mapping[str, Score], name: str, other: str | None) -> tuple[str, str]:
    if other is None:
        return UNKNOWN, UNKNOWN
    (over_episodes,) = improvements(scores, [name], base=other)
    shown = with_interval(over_episodes.probability, over_episodes.interval, 2)
    ours, theirs = ([Sample(scores[each].chosen.by_seed)] for each in (name, other))
    if min(len(ours[0].values), len(theirs[0].values)) < 2:
        return shown, UNKNOWN
    compared = ours, theirs, [(0, 0)]
    return shown, with_interval(improvement(*compared), improvement_interval(*compared), 2)


def offline_rl(scores: Mapping[str, Mapping[str, Score]]) -> tuple[Table, str]:
    """The better of MC and ILQL beside filtered BC, task by task, and in how many it is higher.

    Args:
        scores: task to player to score.
    """
    table = side_by_side(scores, _OFFLINE_RL, _FILTERED, head="offline RL")
    where = f"{sum(row[-1] == 'higher' for row in table.rows)} of {len(table.rows)} tasks"
    said = f"The better of MC and ILQL is above filtered BC, intervals apart from 0, in {where}."
    return table, said if table.rows else ""


def side_by_side(
    scores: Mapping[str, Mapping[str, Score]], names: Sequence[str], base: str, head: str = "method"
) -> Table:
    """The best of some methods beside another one, task by task, each with the settings that were chosen for it.

    Args:
        scores: task to player to score.
        names: methods, of which the best of each task is shown.
        base: what it is compared with; tasks without both are left out.
        head: of the column with the method's name.
    """
    heads = (head, f"{MINUS} {label(base)}, normalised [95 %, episodes]", "beats it, episodes [95 %]", "seeds [95 %]")
    rows = []
    for task, players in scores.items():
        found = [name for name in names if name in players]
        if found and base in players:
            best = max(found, key=lambda name: players[name].chosen.return_mean)
            ours, theirs = players[best].chosen, players[base].chosen
            points, raw = _intervals(ours, theirs, registry.task(task).scores)
            shown = with_interval(ours.normalized - theirs.normalized, points)
            runs = f"{len(ours.seeds)}, {len(theirs.seeds)}"
            rows.append((task, label(best), shown, *_beats(players, best, base), runs, _reading(raw)))
    return Table(("task", *heads, "runs", "reading"), rows, note_last=True)


def differences(task: str, scores: Mapping[str, Score]) -> Table:
    """What each method adds to BC, both with the settings that were chosen; empty without BC.

    Args:
        task: name of the task.
        scores: player to score.
    """
    heads = ("difference", "normalised [95 %, episodes]", "published", "return [95 %, episodes]", "reading")
    published = registry.task(task).scores
    compared = [name for name in _learned(task, scores) if name != _BC] if _BC in scores else []
    rows = []
    for name in compared:
        ours, base, printed = scores[name].chosen, scores[_BC].chosen, published.normalized
        points, raw = _intervals(ours, base, published)
        rows.append(
            (
                f"{label(name)} {MINUS} BC",
                with_interval(ours.normalized - base.normalized, points),
                number(printed[name] - printed[_BC] if {name, _BC} <= printed.keys() else None),
                with_interval(ours.return_mean - base.return_mean, raw, 2),
                _reading(raw),
            )
        )
    return without_empty(Table(heads, rows, note_last=True), "published")


def _intervals(ours: Score, base: Score, published: Scores) -> tuple[Interval, Interval]:
    """Of the difference of both means: normalised, and in returns."""
    both, count = [*ours.samples, *base.samples], len(ours.returns)
    points = stratified_interval(both, partial(_gap, count=count, published=published))
    return points, stratified_interval(both, partial(_gap, count=count))


def _reading(difference: Interval) -> str:
    if difference.low > _ROUNDING:
        return "higher"
    return "lower" if difference.high < -_ROUNDING else "not told apart"


def _gap(parts: list[Resampled], count: int, published: Scores | None = None) -> FloatArray:
    """(R,): mean of the first `count` samples minus that of the others."""
    means = np.array([part.mean() for part in parts])
    if published is not None:
        means = np.vectorize(partial(normalize, scores=published))(means)
    gap: FloatArray = means[:count].mean(axis=0) - means[count:].mean(axis=0)
    return gap
