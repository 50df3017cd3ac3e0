"""Tables of which method does better: all trained players in order, differences from BC, offline RL and filtered BC."""

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

__all__ = ["differences", "offline_rl", "order", "side_by_side"]

_BC = "bc"
_FILTERED = "filtered_bc"
_OFFLINE_RL = ("mc", "ilql")
_PROMPTED = "gpt4"
_ROUNDING = 1e-9  # of means; a difference has to be larger


def _learned(task: str, scores: Mapping[str, Score]) -> list[str]:
    """Names of the players that were trained."""
    others = {DATA, _PROMPTED, *registry.policy_names(task)}
    return [name for name in ordered(scores) if name not in others]


def order(task: str, scores: Mapping[str, Score]) -> Table:
    """Rank all trained players, the best first, with the settings that were chosen, and compare each with the next.

    Over episodes: how probably an episode returns more than one of the next player. Over seeds: by how many points a
    training run scores above one of the next player, where both have several.

    Args:
        task: name of the task.
        scores: player to score.
    """
    names = sorted(_learned(task, scores), key=lambda name: -scores[name].chosen.return_mean)
    beats = "beats the next, episodes [95 %]"
    heads = ("player", "play", "normalised [95 %, episodes]", beats, f"{MINUS} the next [95 %, seeds]", "runs")
    rows = []
    for name, following in zip_longest(names, names[1:]):
        one = scores[name].chosen
        over_episodes = over_seeds = UNKNOWN
        if following is not None:
            over_episodes = _beats(scores, name, following)
            over_seeds = _over_seeds(seed_difference(one, scores[following].chosen))
        rows.append((named(one), play(one), scored(one), over_episodes, over_seeds, str(len(one.seeds))))
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
        scores: task to player to score.
    """
    table = side_by_side(scores, _OFFLINE_RL, _FILTERED, head="offline RL")
    counts = []
    for name in _OFFLINE_RL:
        readings = [row[-1] for row in table.rows if row[1].split(" ")[0] == label(name)]
        told = [reading for reading in readings if not reading.startswith(_THESE_RUNS)]
        if readings:
            higher = sum(reading == "higher" for reading in told)
            counts.append(f"{label(name)} is higher in {higher} of the {len(told)} tasks with such seeds")
    words = f"Over training seeds, three or more of both: {', '.join(counts)}."
    return table, words if counts else ""


def side_by_side(
    scores: Mapping[str, Mapping[str, Score]], names: Sequence[str], base: str, head: str = "method"
) -> Table:
    """Compare some methods with another one, task by task, each with the settings that were chosen for it.

    Args:
        scores: task to player to score.
        names: methods that are compared, a row each.
        base: what they are compared with; tasks without it are left out.
        head: of the column with the method's name.
    """
    beats = "beats it, episodes [95 %]"
    heads = (head, f"{MINUS} {label(base)}, normalised [95 %, episodes]", beats, "normalised [95 %, seeds]")
    rows = []
    for task, players in scores.items():
        for name in names:
            if name not in players or base not in players:
                continue
            ours = players[name].chosen
            theirs = players[base].chosen
            points, raw = _intervals(ours, theirs, registry.task(task).scores)
            over_seeds = seed_difference(ours, theirs)
            shown = with_interval(ours.normalized - theirs.normalized, points) + _few(ours, theirs)
            runs = f"{len(ours.seeds)}, {len(theirs.seeds)}"
            compared = shown, _beats(players, name, base), _over_seeds(over_seeds)
            rows.append((task, named(ours), *compared, runs, _reading(raw, over_seeds)))
    return Table(("task", *heads, "runs", "reading"), rows, note_last=True)


def differences(task: str, scores: Mapping[str, Score]) -> Table:
    """Show what each method adds to BC, both with the settings that were chosen; empty without BC.

    Args:
        task: name of the task.
        scores: player to score.
    """
    published = registry.task(task).scores
    printed = published.normalized
    compared = [name for name in _learned(task, scores) if name != _BC] if _BC in scores else []
    rows = []
    for name in compared:
        ours = scores[name].chosen
        base = scores[_BC].chosen
        points, raw = _intervals(ours, base, published)
        over_seeds = seed_difference(ours, base)
        rows.append(
            (
                f"{label(name)} {MINUS} BC",
                with_interval(ours.normalized - base.normalized, points) + _few(ours, base),
                _over_seeds(over_seeds),
                number(printed[name] - printed[_BC] if {name, _BC} <= printed.keys() else None),
                with_interval(ours.return_mean - base.return_mean, raw, 2),
                _reading(raw, over_seeds),
            )
        )
    normalised = "normalised [95 %, episodes]"
    heads = ("difference", normalised, "[95 %, seeds]", "published", "return [95 %, episodes]", "reading")
    return without_empty(Table(heads, rows, note_last=True), "published")


def _few(ours: Score, base: Score) -> str:
    return f" {FEW}" if ours.few or base.few else ""


def _intervals(ours: Score, base: Score, published: Scores) -> tuple[Interval, Interval]:
    """Return the intervals of the difference of both means: normalised, and in returns."""
    both = [*ours.samples, *base.samples]
    count = len(ours.returns)
    points = stratified_interval(both, partial(_gap, count=count, published=published))
    return points, stratified_interval(both, partial(_gap, count=count))


_THESE_RUNS = "of these runs: "


def _reading(over_episodes: Interval, over_seeds: SeedDifference | None) -> str:
    """Say which is higher: over training seeds, if both have enough of the same ones, else of these very runs."""
    if over_seeds is None or over_seeds.pairs < ENOUGH_SEEDS:
        return _THESE_RUNS + _side(over_episodes)
    return _side(over_seeds.interval) if over_seeds.interval is not None else "not told apart"


def _side(difference: Interval) -> str:
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
