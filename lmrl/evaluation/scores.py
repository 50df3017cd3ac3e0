"""One player on one task over all its training seeds, and aggregates over tasks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from lmrl.envs import registry
from lmrl.envs.task import Scores, normalize
from lmrl.errors import UserError
from lmrl.evaluation.intervals import (
    FloatArray,
    Interval,
    Resampled,
    Sample,
    improvement,
    improvement_interval,
    interquartile_mean,
    pooled_interquartile_mean,
    stratified_interval,
    student_mean,
    wilson,
)
from lmrl.evaluation.results import Result, read_json, read_results

__all__ = [
    "DATA",
    "Aggregate",
    "Improvement",
    "Score",
    "aggregates",
    "data_score",
    "improvements",
    "read_seeds",
    "score",
    "seed_folder",
    "seed_folders",
]


def seed_folder(runs: Path, seed: int) -> Path:
    """``runs`` for seed 0, which is that of the configuration files; ``runs/seed_1`` for seed 1."""
    return runs if seed == 0 else runs / f"seed_{seed}"


def seed_folders(runs: Path) -> dict[int, Path]:
    """Every seed of which there is a folder, and seed 0."""
    found = {int(path.name[5:]): path for path in runs.glob("seed_*") if re.fullmatch(r"seed_[1-9]\d*", path.name)}
    return {0: runs, **dict(sorted(found.items()))}


def read_seeds(runs: Path, task: str) -> dict[str, dict[int, Result]]:
    """The finished evaluations of a task: player to training seed to result.

    Raises:
        UserError: naming the file, if one is broken.
    """
    players: dict[str, dict[int, Result]] = {}
    for seed, folder in seed_folders(runs).items():
        for name, result in read_results(folder, task).items():
            players.setdefault(name, {})[seed] = result
    return players


DATA = "data"
"""Stands among the players for the dataset and its own returns."""


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
    """Of `normalized`, as one of further training seeds (Student's interval); None of a single one."""
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

    @property
    def samples(self) -> list[Sample]:
        """The returns of each seed, for intervals over episodes."""
        return [Sample(values, self.starts) for values in self.returns]


def score(task: str, name: str, results: Mapping[int, Result]) -> Score:
    """Sum up the results of one player, by training seed."""
    published, runs = registry.task(task).scores, [results[seed] for seed in sorted(results)]
    played = [list(run.episodes()) for run in runs]
    returns = [[episode.total_reward for episode in episodes] for episodes in played]
    everything = [episode for episodes in played for episode in episodes]
    by_seed = [normalize(mean(values), published) for values in returns]
    starts = {int(run.scores.get("starts", 0)) for run in runs}
    fixed = starts.pop() if len(starts) == 1 else 0
    samples = [Sample(values, fixed) for values in returns]
    actions, won = sum(map(len, everything)), sum(episode.success for episode in everything)
    over_episodes = stratified_interval(samples, lambda parts: _mean_of_normalized(parts, published))
    return_over_episodes = stratified_interval(samples, _mean_of_means)
    if len(runs) == 1:  # what its scores.json says, as the terminal and the model card do
        over_episodes = Interval(*runs[0].scores["normalized_ci"])
        return_over_episodes = Interval(*runs[0].scores["return_ci"])
    return Score(
        task,
        name,
        seeds=tuple(sorted(results)),
        episodes=min(map(len, played)),
        normalized=mean(by_seed),
        over_episodes=over_episodes,
        over_seeds=student_mean(by_seed) if len(by_seed) > 1 else None,
        return_mean=mean(map(mean, returns)),
        return_over_episodes=return_over_episodes,
        iqm=normalize(float(interquartile_mean(np.concatenate(returns))), published),
        iqm_over_episodes=stratified_interval(samples, lambda parts: _normalized_iqm(parts, published)),
        success_rate=won / len(everything),
        success_ci=wilson(won, len(everything)),
        length_mean=actions / len(everything),
        illegal_rate=sum(episode.illegal for episode in everything) / max(1, actions),
        last=_mean([run.cell.get("last", {}).get("normalized") for run in runs]),
        seconds=_mean([_seconds(run) for run in runs]),
        tokens=_mean([run.cell.get("tokens", {}).get("trained") for run in runs]),
        returns=tuple(map(tuple, returns)),
        lengths=tuple(map(len, everything)),
        by_seed=tuple(by_seed),
        starts=fixed,
    )


def data_score(runs: Path, task: str) -> Score | None:
    """The dataset's own returns, from ``runs/<task>/data/cell.json``; None if nobody looked at them."""
    path = runs / task / DATA / "cell.json"
    record = read_json(path)
    if not record:
        return None
    if lacking := [name for name in ("scores", "returns") if not record.get(name)]:
        raise UserError(f"{path}: lacks {', '.join(lacking)}")
    scores, quantiles = record["scores"], record["returns"]
    interval, published = Interval(*scores["normalized_ci"]), registry.task(task).scores
    middle = normalize(float(interquartile_mean(quantiles)), published)
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
    )


def _normalized(raw: FloatArray, published: Scores) -> FloatArray:
    return np.array([normalize(float(value), published) for value in raw])


def _mean_of_means(parts: list[Resampled]) -> FloatArray:
    means: FloatArray = np.mean([part.mean() for part in parts], axis=0)
    return means


def _mean_of_normalized(parts: list[Resampled], published: Scores) -> FloatArray:
    means: FloatArray = np.mean([_normalized(part.mean(), published) for part in parts], axis=0)
    return means


def _normalized_iqm(parts: list[Resampled], published: Scores) -> FloatArray:
    return _normalized(pooled_interquartile_mean(parts), published)


def _seconds(run: Result) -> float | None:
    """Training and evaluation together, where measured."""
    found = [step["seconds"] for step in run.timing.values() if isinstance(step, dict) and "seconds" in step]
    return sum(found) if found else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


_BASE = "bc"


class Aggregate(NamedTuple):
    """Over all tasks that have a scale: the interquartile mean of the normalised scores of tasks and seeds."""

    name: str
    tasks: int
    iqm: float
    over_episodes: Interval
    over_seeds: Interval | None
    """The seeds of each task are resampled; None if some task has a single one."""
    beats_bc: float | None
    """Mean over the tasks of the probability that a seed's score is above one of BC; None for BC itself."""
    beats_bc_over_seeds: Interval | None


class Improvement(NamedTuple):
    """How probably a player does better than a base."""

    name: str
    probability: float
    interval: Interval


def aggregates(scores: Mapping[str, Mapping[str, Score]], names: Sequence[str]) -> list[Aggregate]:
    """One of each player that has played all tasks which have a scale.

    Args:
        scores: task to player to score.
        names: players to look at.
    """
    tasks = [task for task in scores if registry.task(task).scores.maximum is not None]
    whole = [name for name in names if all(name in scores[task] for task in tasks)]
    if len(tasks) < 2:
        return []
    bases = [scores[task][_BASE] for task in tasks] if _BASE in whole else []
    return [_aggregate(name, [scores[task][name] for task in tasks], bases if name != _BASE else []) for name in whole]


def improvements(scores: Mapping[str, Score], names: Sequence[str], base: str = _BASE) -> list[Improvement]:
    """The probability that an episode of a player returns more than one of the base with the same training seed.

    Where the seeds of both differ, all pairs of seeds count. Intervals are over episodes: of these very runs, had they
    played others. What other runs would have been like they do not say, and cannot where a player has one run.
    """
    found = []
    for name in names:
        if name in scores and base in scores and name != base:
            ours, theirs = scores[name], scores[base]
            compared = ours.samples, theirs.samples, _pairs(ours, theirs)
            found.append(Improvement(name, improvement(*compared), improvement_interval(*compared)))
    return found


def _pairs(ours: Score, base: Score) -> list[tuple[int, int]]:
    if ours.seeds == base.seeds:
        return [(run, run) for run in range(len(ours.returns))]
    return [(a, b) for a in range(len(ours.returns)) for b in range(len(base.returns))]


def _aggregate(name: str, scores: Sequence[Score], bases: Sequence[Score]) -> Aggregate:
    by_task = [Sample(score.by_seed) for score in scores]
    several = min(len(score.by_seed) for score in scores) > 1
    compared = by_task, [Sample(base.by_seed) for base in bases], [(task, task) for task in range(len(bases))]
    return Aggregate(
        name,
        len(scores),
        float(interquartile_mean(np.concatenate([score.by_seed for score in scores]))),
        _over_episodes(scores),
        stratified_interval(by_task, pooled_interquartile_mean) if several else None,
        improvement(*compared) if bases else None,
        improvement_interval(*compared) if bases and several else None,
    )


def _over_episodes(scores: Sequence[Score]) -> Interval:
    """Every run of every task is a sample, of its episodes."""
    owners = [registry.task(score.task).scores for score in scores for _ in score.returns]

    def statistic(parts: list[Resampled]) -> FloatArray:
        means = [
            [normalize(float(value), owner) for value in part.mean()] for part, owner in zip(parts, owners, strict=True)
        ]
        return interquartile_mean(np.array(means).T)

    return stratified_interval([sample for score in scores for sample in score.samples], statistic)
