"""Tables that compare methods: a ranking, differences from BC, and offline RL against filtered BC."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest

import numpy as np

from lmrl.envs import registry
from lmrl.envs.scores import Scores, normalize
from lmrl.evaluation.aggregates import ENOUGH_SEEDS, SeedDifference, improvements, seed_difference
from lmrl.evaluation.intervals import FloatArray, Interval, Resampled, stratified_interval
from lmrl.evaluation.records import DATA
from lmrl.evaluation.scores import Score
from lmrl.report.tables import Table, named, play, scored, without_empty
from lmrl.report.wording import FEW, MINUS, NO_SPREAD, UNKNOWN, label, number, ordered, with_interval

_BC = "bc"
_FILTERED = "filtered_bc"
_OFFLINE_RL = ("mc", "ilql")
_PROMPTED = "gpt4"
_ROUNDING = 1e-9  # error of means by rounding; a difference has to be larger


def _trained(task: str, scores: Mapping[str, Score]) -> list[str]:
    """Return the names of the policies that were trained."""
    others = {DATA, _PROMPTED, *registry.policy_names(task)}
    return [name for name in ordered(scores) if name not in others]


def order(task: str, scores: Mapping[str, Score]) -> Table:
    """Rank all trained methods, the best first, with their chosen settings, and compare each with the next.

    Over episodes: the probability that an episode returns more than one of the next method. Over seeds: by how many
    points a training run scores above one of the next method, where both have several runs.

    Args:
        task: name of the task.
        scores: method to score.
    """
    # By raw returns: not every task has a scale on which scores are normalised.
    names = sorted(_trained(task, scores), key=lambda name: -scores[name].chosen.return_mean)
    beats = "beats the next, episodes [95 %]"
    heads = ("player", "play", "normalised [95 %, episodes]", beats, f"{MINUS} the next [95 %, seeds]", "runs")
    rows = []
    for name, next_name in zip_longest(names, names[1:]):
        score = scores[name].chosen
        over_episodes = over_seeds = UNKNOWN
        if next_name is not None:
            over_episodes = _beats(scores, name, next_name)
            over_seeds = _over_seeds(seed_difference(score, scores[next_name].chosen))
        rows.append((named(score), play(score), scored(score), over_episodes, over_seeds, str(len(score.seeds))))
    return Table(heads, rows)


def _beats(scores: Mapping[str, Score], name: str, other: str) -> str:
    (over_episodes,) = improvements(scores, [name], base=other)
    return with_interval(over_episodes.probability, over_episodes.interval, 2)


def _over_seeds(difference: SeedDifference | None) -> str:
    if difference is None:
        return UNKNOWN
    if difference.interval is None:
        return f"{number(difference.mean)} [{NO_SPREAD}]"
    return with_interval(difference.mean, difference.interval)


def offline_rl(scores: Mapping[str, Mapping[str, Score]]) -> tuple[Table, str]:
    """Compare MC and ILQL with filtered BC, task by task, and count the tasks in which each is higher over seeds.

    Args:
        scores: task to method to score.

    Returns:
        The table, and the counts in a sentence.
    """
    table = side_by_side(scores, _OFFLINE_RL, _FILTERED, head="offline RL")
    counts = []
    for name in _OFFLINE_RL:
        readings = Counter[str]()
        for _, method, *_, reading in table.rows:
            if method.split(" ")[0] == label(name):  # a mark may follow the label
                readings[reading] += 1
        # Only readings over seeds are statements about methods.
        over_seeds = readings["higher"] + readings["lower"] + readings[_UNCLEAR]
        if over_seeds:
            higher = readings["higher"]
            counts.append(f"{label(name)} is higher in {higher} of the {over_seeds} tasks with such seeds")
    words = f"Over training seeds, three or more of both: {', '.join(counts)}."
    return table, words if counts else ""


def side_by_side(
    scores: Mapping[str, Mapping[str, Score]], names: Sequence[str], base: str, head: str = "method"
) -> Table:
    """Compare some methods with a base, task by task, each with the settings that were chosen for it.

    Args:
        scores: task to method to score.
        names: methods to compare, a row each.
        base: the method that they are compared with; tasks without it are left out.
        head: head of the column with the method's name.
    """
    beats = "beats it, episodes [95 %]"
    heads = (head, f"{MINUS} {label(base)}, normalised [95 %, episodes]", beats, "normalised [95 %, seeds]")
    rows = []
    for task, methods in scores.items():
        for name in names:
            if name not in methods or base not in methods:
                continue
            ours = methods[name].chosen
            theirs = methods[base].chosen
            points, raw = _intervals(ours, theirs, registry.task(task).scores)
            over_seeds = seed_difference(ours, theirs)
            rows.append(
                (
                    task,
                    named(ours),
                    with_interval(ours.normalized - theirs.normalized, points) + _few(ours, theirs),
                    _beats(methods, name, base),
                    _over_seeds(over_seeds),
                    f"{len(ours.seeds)}, {len(theirs.seeds)}",
                    _reading(raw, over_seeds),
                )
            )
    return Table(("task", *heads, "runs", "reading"), rows, note_last=True)


def differences(task: str, scores: Mapping[str, Score]) -> Table:
    """Show the difference between each method and BC, both with their chosen settings; empty without BC.

    Args:
        task: name of the task.
        scores: method to score.
    """
    published = registry.task(task).scores
    printed = published.normalized
    rows = []
    for name in _trained(task, scores):
        if name == _BC or _BC not in scores:
            continue
        ours = scores[name].chosen
        base = scores[_BC].chosen
        points, raw = _intervals(ours, base, published)
        over_seeds = seed_difference(ours, base)
        published_difference = None
        if name in printed and _BC in printed:
            published_difference = printed[name] - printed[_BC]
        rows.append(
            (
                f"{label(name)} {MINUS} BC",
                with_interval(ours.normalized - base.normalized, points) + _few(ours, base),
                _over_seeds(over_seeds),
                number(published_difference),
                with_interval(ours.return_mean - base.return_mean, raw, 2),
                _reading(raw, over_seeds),
            )
        )
    normalised = "normalised [95 %, episodes]"
    heads = ("difference", normalised, "[95 %, seeds]", "published", "return [95 %, episodes]", "reading")
    return without_empty(Table(heads, rows, note_last=True), "published")


def _few(ours: Score, base: Score) -> str:
    return f" {FEW}" if ours.is_interval_too_narrow or base.is_interval_too_narrow else ""


def _intervals(ours: Score, base: Score, published: Scores) -> tuple[Interval, Interval]:
    """Return two intervals of the difference between the means: of normalised scores, and of returns."""
    both = [*ours.samples, *base.samples]  # `_gap` tells them apart by their number
    count = len(ours.returns)
    points = stratified_interval(both, partial(_gap, count=count, published=published))
    return points, stratified_interval(both, partial(_gap, count=count))


_UNCLEAR = "not told apart"


def _reading(over_episodes: Interval, over_seeds: SeedDifference | None) -> str:
    """Return which is higher: over training seeds if there are enough pairs of them, and otherwise for these runs."""
    if over_seeds is None or over_seeds.pairs < ENOUGH_SEEDS:
        return f"of these runs: {_side(over_episodes)}"
    return _UNCLEAR if over_seeds.interval is None else _side(over_seeds.interval)


def _side(difference: Interval) -> str:
    if difference.low > _ROUNDING:
        return "higher"
    return "lower" if difference.high < -_ROUNDING else _UNCLEAR


def _gap(runs: list[Resampled], count: int, published: Scores | None = None) -> FloatArray:
    """Return the mean of the first `count` runs minus that of the others, (R,)."""
    means = np.array([run.mean() for run in runs])  # (runs, R)
    if published is not None:
        means = np.vectorize(partial(normalize, scores=published))(means)
    gap: FloatArray = means[:count].mean(axis=0) - means[count:].mean(axis=0)
    return gap
