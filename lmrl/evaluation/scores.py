"""The score of a method on a task, over all its training seeds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain
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


@dataclass(frozen=True, slots=True)
class Score:
    """Means over training seeds. Both kinds of interval, over episodes and over seeds, are 95 % and never mixed."""

    task: str
    name: str
    seeds: tuple[int, ...]
    """Training seeds."""
    episodes: int
    """Number of episodes per seed."""
    normalized: float
    """Mean over seeds of the normalised mean return."""
    over_episodes: Interval
    """Interval of `normalized` for the same training runs, and the same starts where they are fixed, in other games."""
    over_seeds: Interval | None
    """Student's interval of `normalized` for further training seeds; None for a single seed, and for seeds with equal
    scores, whose spread is not known."""
    return_mean: float
    return_over_episodes: Interval
    iqm: float
    """Interquartile mean of the returns of all seeds and episodes, normalised."""
    iqm_over_episodes: Interval
    success_rate: float
    success_ci: Interval
    """Wilson's interval of the success rate."""
    length_mean: float
    illegal_rate: float
    last: float | None = None
    """`normalized` of the last checkpoints; all other scores are of the best checkpoints, by return while training."""
    seconds: float | None = None
    """Mean wall time per seed, of training and evaluation."""
    cpu_seconds: float | None = None
    """Mean time of all cores per seed, where it was measured."""
    tokens: float | None = None
    """Mean number of action tokens per seed that were learned from; repetitions count."""
    returns: tuple[tuple[float, ...], ...] = ()
    """The return of each episode, by seed."""
    lengths: tuple[int, ...] = ()
    """The lengths of all episodes, in turns."""
    by_seed: tuple[float, ...] = ()
    """Normalised mean return of each seed."""
    starts: int = 0
    """Number of fixed starts, which the episodes of each seed took in turn; 0: seeds decided how they begin."""
    own: float | None = None
    """`normalized` on the task's own scale (`lmrl.envs.scores.OwnScale`); None for a task without one."""
    own_over_episodes: Interval | None = None
    own_by_seed: tuple[float, ...] = ()
    excess: float | None = None
    """Nats per action by which BC's held-out loss ends above its floor (`lmrl.data.floor`), mean over seeds."""
    settings: tuple[str, ...] = ()
    """Chosen decoding settings of each seed, such as ``temperature 0.25``; empty: as trained."""
    tuned: "Score | None" = None
    """The same runs with the settings that were chosen for each of them on other games."""
    missing_fixes: tuple[str, ...] = ()
    """Names of the fixes (`lmrl.evaluation.records.FIXES`) that would change some of the runs, which are older."""
    is_interval_too_narrow: bool = False
    """Whether intervals over episodes rest on few games and are too narrow: see `mark_few`."""

    def __repr__(self) -> str:
        """One line, without the returns of the episodes."""
        size = f"{len(self.seeds)} seeds of {self.episodes} episodes"
        return f"<Score of {self.name} on {self.task}: {size}, mean return {self.return_mean:.2f}>"

    @property
    def chosen(self) -> "Score":
        """Return `tuned` if there is one, even if it scores lower, and otherwise this score."""
        return self if self.tuned is None else self.tuned

    @property
    def samples(self) -> list[Sample]:
        """Return the returns of each seed, for intervals over episodes."""
        return [Sample(values, self.starts) for values in self.returns]


def score(task: str, name: str, results: Mapping[int, Record]) -> Score:
    """Score a method from its results, by training seed; with `Score.tuned` if all of them were tuned."""
    as_trained = _score(task, name, results)
    # A mean over seeds of which only some are tuned would mix two kinds of runs.
    tuned = {}
    for seed, record in results.items():
        if record.tuned is not None:
            tuned[seed] = record.tuned
    return as_trained if len(tuned) < len(results) else replace(as_trained, tuned=_score(task, name, tuned))


def _score(task: str, name: str, results: Mapping[int, Record]) -> Score:
    published = registry.task(task).scores
    seeds = sorted(results)
    runs = [results[seed] for seed in seeds]
    returns = [run.episodes.returns.tolist() for run in runs]
    by_seed = [normalize(mean(values), published) for values in returns]
    lengths = list(chain.from_iterable(run.episodes.lengths.tolist() for run in runs))
    success_rate = mean(float(run.episodes.successes.mean()) for run in runs)
    # A mean of the rates of all seeds varies like the rate of this many games: all of them, if the seeds have equally
    # many.
    games = float(len(runs) ** 2 / sum(Fraction(1, len(values)) for values in returns))
    settings = [describe_settings(run.scores.get("provenance", {}).get("decoding", {})) for run in runs]
    missing_fixes = {fix for run in runs for fix in run.missing_fixes}

    starts = {int(run.scores.get("starts", 0)) for run in runs}
    fixed = starts.pop() if len(starts) == 1 else 0
    samples = [Sample(values, fixed) for values in returns]
    if len(runs) == 1:  # the intervals of scores.json, which the terminal and the model card show as well
        over_episodes = Interval(*runs[0].scores["normalized_ci"])
        return_over_episodes = Interval(*runs[0].scores["return_ci"])
    else:
        over_episodes = stratified_interval(samples, partial(_mean_on, scale=published))
        return_over_episodes = stratified_interval(samples, _mean_of_means)

    own_scale = registry.task(task).own_scale
    if any(run.scores.get("own") is None for run in runs):
        own_scale = None  # the environment had other settings than those of the own scale
    own_by_seed: list[float] = []
    own_over_episodes = None
    if own_scale is not None:
        own_by_seed = [normalize(mean(values), own_scale) for values in returns]
        own_over_episodes = stratified_interval(samples, partial(_mean_on, scale=own_scale))

    return Score(
        task,
        name,
        seeds=tuple(seeds),
        episodes=min(map(len, returns)),
        normalized=mean(by_seed),
        over_episodes=over_episodes,
        over_seeds=none_if_zero_width(student_mean(by_seed)) if len(by_seed) > 1 else None,
        return_mean=mean(map(mean, returns)),
        return_over_episodes=return_over_episodes,
        iqm=normalize(float(interquartile_mean(np.concatenate(returns))), published),
        iqm_over_episodes=stratified_interval(samples, partial(_normalized_iqm, published=published)),
        success_rate=success_rate,
        success_ci=wilson(success_rate * games, games),
        length_mean=mean(float(run.episodes.lengths.mean()) for run in runs),
        illegal_rate=mean(int(run.episodes.illegal.sum()) / max(1, int(run.episodes.lengths.sum())) for run in runs),
        last=_mean([run.cell.get("last", {}).get("normalized") for run in runs]),
        seconds=_mean([_seconds(run, "seconds") for run in runs]),
        cpu_seconds=_mean([_seconds(run, "cpu_seconds") for run in runs]),
        tokens=_mean([run.cell.get("tokens", {}).get("trained") for run in runs]),
        returns=tuple(map(tuple, returns)),
        lengths=tuple(lengths),
        by_seed=tuple(by_seed),
        starts=fixed,
        own=mean(own_by_seed) if own_by_seed else None,
        own_over_episodes=own_over_episodes,
        own_by_seed=tuple(own_by_seed),
        excess=_mean([_excess(run) for run in runs]),
        settings=tuple(settings) if any(settings) else (),
        missing_fixes=tuple(sorted(missing_fixes)),
    )


def _excess(run: Record) -> float | None:
    curve = run.curve_values.get("val/bc/excess")
    return None if curve is None else curve.values[-1]


def none_if_zero_width(interval: Interval) -> Interval | None:
    """Return an interval over training runs, or None if it has no width: equal runs do not reveal their spread."""
    # Equal scores can differ in their last bits when they were summed up in another order.
    tolerance = 1e-9 * max(1.0, abs(interval.low), abs(interval.high))
    return interval if interval.high - interval.low > tolerance else None


def task_scores(place: Path, task: str, records: Mapping[str, Mapping[int, Record]] | None = None) -> dict[str, Score]:
    """Return the score of every method of a task, by name; that of the dataset is called `DATA`.

    Args:
        place: folder of runs or of records, see `lmrl.evaluation.records.read_records`.
        task: name of the task.
        records: the records of the task, if they were read before; None: read them.

    Raises:
        UserError: naming the file, if one is broken.
    """
    if records is None:
        records = read_records(place, task)
    scores = {}
    for name, results in records.items():
        scores[name] = score(task, name, results)
    data = data_score(place, task)
    if data is not None:
        scores[DATA] = data
    return mark_few(task, scores)


_NOTICEABLE = 0.5
"""An interval that rests on few games is marked if one game can move the normalised score by this many points."""


def mark_few(task: str, scores: Mapping[str, Score]) -> dict[str, Score]:
    """Set `Score.is_interval_too_narrow` where an interval over episodes rests on too few games.

    That is where `rests_on_few` says so and a single game moves the normalised score by half a point or more. The
    lowest and highest return that a trained policy can get are taken from the games of all trained policies of the
    task: a return that one policy gets may also happen to another one in games that it has not played. Scripted
    policies are not compared.

    Args:
        task: name of the task.
        scores: method to score.
    """
    scripted = {DATA, *registry.policy_names(task)}
    trained = []
    low = math.inf
    high = -math.inf
    for name, score in scores.items():
        if name in scripted or not score.returns:
            continue
        trained.append(name)
        for way in (score, score.tuned):
            if way is not None:
                low = min(low, *map(min, way.returns))
                high = max(high, *map(max, way.returns))

    marked = dict(scores)
    for name in trained:
        as_trained = _with_few(scores[name], low, high)
        tuned = None if as_trained.tuned is None else _with_few(as_trained.tuned, low, high)
        marked[name] = replace(as_trained, tuned=tuned)
    return marked


def _with_few(score: Score, low: float, high: float) -> Score:
    """Set `Score.is_interval_too_narrow`, given the lowest and the highest return of any trained policy."""
    published = registry.task(score.task).scores
    games = sum(map(len, score.returns))
    as_it_is = normalize(score.return_mean, published)
    largest_move = 0.0
    for extreme in (low, high):
        moved_mean = score.return_mean + (extreme - score.return_mean) / games
        largest_move = max(largest_move, abs(normalize(moved_mean, published) - as_it_is))
    is_too_narrow = rests_on_few(score.return_over_episodes, games, score.return_mean, Interval(low, high))
    return replace(score, is_interval_too_narrow=is_too_narrow and largest_move >= _NOTICEABLE)


def data_score(runs: Path, task: str) -> Score | None:
    """Return the score of the dataset's own returns; None without a record of them.

    Args:
        runs: folder of runs or of records, see `lmrl.evaluation.records.read_records`.
        task: name of the task.
    """
    record = read_data(runs, task)
    if not record:
        return None
    scores = record["scores"]
    # The record keeps percentiles of the returns, not all of them: datasets have up to a million episodes.
    quantiles = record["returns"]
    published = registry.task(task).scores
    middle = normalize(float(interquartile_mean(quantiles)), published)
    own_scale = registry.task(task).own_scale
    own_mean = own_interval = None
    if own_scale is not None and scores.get("own") is not None:
        low, high = scores["return_ci"]
        own_mean = normalize(scores["return_mean"], own_scale)
        own_interval = Interval(normalize(low, own_scale), normalize(high, own_scale))
    return Score(
        task,
        DATA,
        seeds=(),
        episodes=scores["episodes"],
        normalized=scores["normalized"],
        over_episodes=Interval(*scores["normalized_ci"]),
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
        own=own_mean,
        own_over_episodes=own_interval,
    )


def _normalized(raw: FloatArray, scale: Scores | OwnScale) -> FloatArray:
    if isinstance(scale, OwnScale):  # as `normalize` would for each value
        scale = Scores(scale.random, scale.recorder, scale.best)
    return np.array([normalize(value, scale) for value in raw.tolist()])


# Statistics for `stratified_interval`: from the resampled returns of each run to R values.


def _mean_of_means(runs: list[Resampled]) -> FloatArray:
    means: FloatArray = np.mean([run.mean() for run in runs], axis=0)
    return means


def _mean_on(runs: list[Resampled], scale: Scores | OwnScale) -> FloatArray:
    """Return the mean of the runs' mean returns, each on a scale."""
    means: FloatArray = np.mean([_normalized(run.mean(), scale) for run in runs], axis=0)
    return means


def _normalized_iqm(runs: list[Resampled], published: Scores) -> FloatArray:
    return _normalized(pooled_interquartile_mean(runs), published)


def _seconds(run: Record, kind: str) -> float | None:
    """Return the time of training and evaluation together; None unless every finished step was measured."""
    total: float | None = None
    for step in run.timing.values():
        if not isinstance(step, dict) or "seconds" not in step:
            continue  # a step without `seconds` was killed
        if step.get(kind) is None:
            return None
        total = step[kind] if total is None else total + step[kind]
    return total


SETTINGS_WITHOUT_EFFECT = ("allow_pickle", "device", "compile")
"""Decoding settings that make no difference to the games."""


def describe_settings(settings: Mapping[str, Any]) -> str:
    """Return decoding settings as words, ``temperature 0.25, beta 4``; empty if none were chosen."""
    words = []
    for name, value in settings.items():
        if name in SETTINGS_WITHOUT_EFFECT or value is False:
            continue
        if value is True:
            words.append(name)
        elif isinstance(value, int | float):
            words.append(f"{name} {value:g}")
        else:
            words.append(f"{name} {value}")
    return in_one_line(", ".join(words))


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
