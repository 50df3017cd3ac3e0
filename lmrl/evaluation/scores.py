"""One player on one task over all its training seeds, and aggregates over tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from lmrl.envs import registry
from lmrl.envs.scores import OwnScale, Scores, normalize
from lmrl.errors import in_one_line
from lmrl.evaluation.intervals import (
    FloatArray,
    Interval,
    Resampled,
    Sample,
    interquartile_mean,
    pooled_interquartile_mean,
    rests_on_few,
    stratified_interval,
    student_mean,
    wilson,
)
from lmrl.evaluation.records import DATA, Record, read_data, read_records

__all__ = [
    "ALIKE",
    "Score",
    "data_score",
    "mark_few",
    "score",
    "settings_told",
    "task_scores",
    "with_spread",
]


@dataclass(frozen=True, slots=True)
class Score:
    """Means over training seeds; both kinds of interval are 95 % and never mixed."""

    task: str
    name: str
    seeds: tuple[int, ...]
    """Training seeds."""
    episodes: int
    """Per seed."""
    normalized: float
    """Mean over the seeds of each one's normalised mean return."""
    over_episodes: Interval
    """Of `normalized`: the training runs are given, and their starts where they are fixed; episodes are drawn anew."""
    over_seeds: Interval | None
    """Of `normalized`, as one of further training seeds (Student's interval); None of a single one, and of equal ones,
    whose spread is not known."""
    return_mean: float
    return_over_episodes: Interval
    iqm: float
    """The interquartile mean of the returns of all seeds and episodes, normalised."""
    iqm_over_episodes: Interval
    success_rate: float
    success_ci: Interval
    length_mean: float
    illegal_rate: float
    last: float | None = None
    """`normalized` of the last checkpoints; the scores above are those of the best ones by return while training."""
    seconds: float | None = None
    """Wall time of a seed, training and evaluation, on average."""
    cpu_seconds: float | None = None
    """Time of all cores together likewise, where it was measured."""
    tokens: float | None = None
    """Action tokens that a seed learned from, each time anew, on average."""
    returns: tuple[tuple[float, ...], ...] = ()
    """By seed and episode."""
    lengths: tuple[int, ...] = ()
    """Of all episodes, in turns."""
    by_seed: tuple[float, ...] = ()
    """Normalised mean return of each seed."""
    starts: int = 0
    """How many starts the episodes of each seed took in turn; 0: seeds decided how they begin."""
    own: float | None = None
    """`normalized` on the task's own scale (`lmrl.envs.scores.OwnScale`); None of a task without."""
    own_over_episodes: Interval | None = None
    own_by_seed: tuple[float, ...] = ()
    excess: float | None = None
    """Nats per action by which BC's held-out loss ends above the floor (`lmrl.data.floor`), mean of the seeds."""
    settings: tuple[str, ...] = ()
    """``temperature 0.25`` and the like of each seed, if any were chosen; empty: as trained."""
    tuned: "Score | None" = None
    """The same runs with the settings that were chosen for each, on games that no score counts."""
    before: tuple[str, ...] = ()
    """Names of the fixes (`lmrl.evaluation.records.FIXES`) that change some of the runs, which are older."""
    few: bool = False
    """Whether intervals over episodes are too narrow, as they rest on few games: see `mark_few`."""

    def __repr__(self) -> str:
        """One line, without the returns of the episodes."""
        told = f"{len(self.seeds)} seeds of {self.episodes} episodes, mean return {self.return_mean:.2f}"
        return f"<Score of {self.name} on {self.task}: {told}>"

    @property
    def chosen(self) -> "Score":
        """With the settings that were chosen on other games: `tuned` where there are such, whichever scores higher."""
        return self if self.tuned is None else self.tuned

    @property
    def samples(self) -> list[Sample]:
        """The returns of each seed, for intervals over episodes."""
        return [Sample(values, self.starts) for values in self.returns]


def score(task: str, name: str, results: Mapping[int, Record]) -> Score:
    """Sum up the results of one player, by training seed; with `Score.tuned` if all of them were tuned."""
    tuned = {seed: result.tuned for seed, result in results.items() if result.tuned is not None}
    whole = _score(task, name, results)
    return whole if len(tuned) < len(results) else replace(whole, tuned=_score(task, name, tuned))


def _score(task: str, name: str, results: Mapping[int, Record]) -> Score:
    row = registry.task(task)
    runs = [results[seed] for seed in sorted(results)]
    published = row.scores
    own = row.own_scale
    if any(run.scores.get("own") is None for run in runs):  # played with other settings of the environment
        own = None
    played = [run.episodes for run in runs]
    returns: list[list[float]] = [table.returns.tolist() for table in played]
    count = sum(map(len, returns))
    by_seed = [normalize(mean(values), published) for values in returns]
    starts = {int(run.scores.get("starts", 0)) for run in runs}
    fixed = starts.pop() if len(starts) == 1 else 0
    samples = [Sample(values, fixed) for values in returns]
    actions = sum(int(table.lengths.sum()) for table in played)
    won = sum(int(table.successes.sum()) for table in played)
    over_episodes = stratified_interval(samples, partial(_mean_on, scale=published))
    return_over_episodes = stratified_interval(samples, _mean_of_means)
    if len(runs) == 1:  # what its scores.json says, as the terminal and the model card do
        over_episodes = Interval(*runs[0].scores["normalized_ci"])
        return_over_episodes = Interval(*runs[0].scores["return_ci"])
    settings = tuple(_settings(run) for run in runs)
    return Score(
        task,
        name,
        seeds=tuple(sorted(results)),
        episodes=min(map(len, returns)),
        normalized=mean(by_seed),
        over_episodes=over_episodes,
        over_seeds=with_spread(student_mean(by_seed)) if len(by_seed) > 1 else None,
        return_mean=mean(map(mean, returns)),
        return_over_episodes=return_over_episodes,
        iqm=normalize(float(interquartile_mean(np.concatenate(returns))), published),
        iqm_over_episodes=stratified_interval(samples, lambda parts: _normalized_iqm(parts, published)),
        success_rate=won / count,
        success_ci=wilson(won, count),
        length_mean=actions / count,
        illegal_rate=sum(int(table.illegal.sum()) for table in played) / max(1, actions),
        last=_mean([run.cell.get("last", {}).get("normalized") for run in runs]),
        seconds=_mean([_seconds(run, "seconds") for run in runs]),
        cpu_seconds=_mean([_seconds(run, "cpu_seconds") for run in runs]),
        tokens=_mean([run.cell.get("tokens", {}).get("trained") for run in runs]),
        returns=tuple(map(tuple, returns)),
        lengths=tuple(length for table in played for length in table.lengths.tolist()),
        by_seed=tuple(by_seed),
        starts=fixed,
        own=None if own is None else mean(normalize(mean(values), own) for values in returns),
        own_over_episodes=None if own is None else stratified_interval(samples, partial(_mean_on, scale=own)),
        own_by_seed=() if own is None else tuple(normalize(mean(values), own) for values in returns),
        excess=_mean([_excess(run) for run in runs]),
        settings=settings if any(settings) else (),
        before=tuple(sorted({name for run in runs for name in run.before})),
    )


def with_spread(interval: Interval) -> Interval | None:
    """Return the interval over training runs, or None if it has no width: equal runs say nothing about their spread."""
    tolerance = 1e-9 * max(1.0, abs(interval.low), abs(interval.high))  # of sums in another order
    return interval if interval.high - interval.low > tolerance else None


def task_scores(place: Path, task: str, records: Mapping[str, Mapping[int, Record]] | None = None) -> dict[str, Score]:
    """Return the score of every player of a task, by name; `DATA` is that of the dataset.

    Args:
        place: folder of runs or of records, as of `lmrl.evaluation.records.read_records`.
        task: name of the task.
        records: its records, if they were read already.

    Raises:
        UserError: naming the file, if one is broken.
    """
    found = read_records(place, task) if records is None else records
    scores = {name: score(task, name, results) for name, results in found.items()}
    data = data_score(place, task)
    if data is not None:
        scores[DATA] = data
    return mark_few(task, scores)


_NOTICEABLE = 0.5
"""Points of a normalised score that one game moves, from which on an interval that rests on few games is marked."""


def mark_few(task: str, scores: Mapping[str, Score]) -> dict[str, Score]:
    """Set `Score.few` where the interval over episodes rests on too few games, each of which the score depends on.

    That is where `rests_on_few` says so and a single game moves the normalised score by half a point or more. The
    lowest and highest return that a trained policy can get are taken from the games of all trained policies of the
    task: what one of them does, another may do in games that it has not played. Scripted players are not compared.

    Args:
        task: name of the task.
        scores: its players.
    """
    scripted = {DATA, *registry.policy_names(task)}
    trained = [one for name, one in scores.items() if name not in scripted and one.returns]
    ways = [way for one in trained for way in (one, one.tuned) if way is not None]
    if not ways:
        return dict(scores)
    low = min(min(returns) for way in ways for returns in way.returns)
    high = max(max(returns) for way in ways for returns in way.returns)
    published = registry.task(task).scores

    def marked(one: Score) -> Score:
        games = sum(map(len, one.returns))
        few = rests_on_few(one.return_over_episodes, games, one.return_mean, Interval(low, high))
        moved = [one.return_mean + (extreme - one.return_mean) / games for extreme in (low, high)]
        largest_move = max(abs(normalize(mean, published) - one.normalized) for mean in moved)
        few = few and largest_move >= _NOTICEABLE
        return replace(one, few=few, tuned=None if one.tuned is None else marked(one.tuned))

    found = dict(scores)
    for one in trained:
        found[one.name] = marked(one)
    return found


def data_score(runs: Path, task: str) -> Score | None:
    """Return the score of the dataset's own returns; None without a record of them.

    Args:
        runs: folder of runs or of records, as of `lmrl.evaluation.records.read_records`.
        task: name of the task.
    """
    record = read_data(runs, task)
    if not record:
        return None
    scores = record["scores"]
    quantiles = record["returns"]
    interval = Interval(*scores["normalized_ci"])
    published = registry.task(task).scores
    middle = normalize(float(interquartile_mean(quantiles)), published)
    own = registry.task(task).own_scale
    return Score(
        task,
        DATA,
        seeds=(),
        episodes=scores["episodes"],
        normalized=scores["normalized"],
        over_episodes=interval,
        over_seeds=None,
        return_mean=scores["return_mean"],
        return_over_episodes=Interval(*scores["return_ci"]),
        iqm=middle,
        iqm_over_episodes=Interval(middle, middle),
        success_rate=scores["success_rate"],
        success_ci=Interval(*scores["success_ci"]),
        length_mean=scores["length_mean"],
        illegal_rate=scores["illegal_rate"],
        returns=(tuple(quantiles),),
        own=None if own is None else normalize(scores["return_mean"], own),
        own_over_episodes=None if own is None else Interval(*(normalize(end, own) for end in scores["return_ci"])),
    )


def _normalized(raw: FloatArray, scale: Scores | OwnScale) -> FloatArray:
    return np.array([normalize(float(value), scale) for value in raw])


def _mean_of_means(parts: list[Resampled]) -> FloatArray:
    means: FloatArray = np.mean([part.mean() for part in parts], axis=0)
    return means


def _mean_on(parts: Sequence[Resampled], scale: Scores | OwnScale) -> FloatArray:
    """(R,): the mean of the runs' mean returns, each on a scale."""
    means: FloatArray = np.mean([_normalized(part.mean(), scale) for part in parts], axis=0)
    return means


def _normalized_iqm(parts: list[Resampled], published: Scores) -> FloatArray:
    return _normalized(pooled_interquartile_mean(parts), published)


def _seconds(run: Record, kind: str) -> float | None:
    """Training and evaluation together, if every step that has ended was measured so."""
    found = [step.get(kind) for step in run.timing.values() if isinstance(step, dict) and "seconds" in step]
    measured = [value for value in found if value is not None]
    return sum(measured) if measured and len(measured) == len(found) else None


def _excess(run: Record) -> float | None:
    curve = run.curve_values.get("val/bc/excess")
    return None if curve is None else curve.values[-1]


def _settings(run: Record) -> str:
    return settings_told(run.scores.get("provenance", {}).get("decoding", {}))


ALIKE = ("allow_pickle", "device", "compile")
"""Decoding settings with which the same is played."""


def settings_told(settings: Mapping[str, Any]) -> str:
    """``temperature 0.25, beta 4``: the decoding settings that were chosen; empty if none were."""
    told = []
    for name, value in settings.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name not in ALIKE and value is not False:
            told.append(name if value is True else f"{name} {value:g}" if number else f"{name} {value}")
    return in_one_line(", ".join(told))


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
