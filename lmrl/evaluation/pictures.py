"""All pictures of a report, drawn from what was found."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from lmrl.envs import registration
from lmrl.evaluation.aggregates import improvements
from lmrl.evaluation.learning_plot import plot_losses, plot_returns
from lmrl.evaluation.maze_picture import draw_mazes
from lmrl.evaluation.naming import ordered
from lmrl.evaluation.play_plots import plot_improvements, plot_lengths, plot_returns_beside_data
from lmrl.evaluation.plots import Bar, plot_scores
from lmrl.evaluation.results import Result
from lmrl.evaluation.score import Score

__all__ = ["draw"]

_STALE = ("maze_values_*.png", "losses_*.png", "learning_curves.png", "improvement.png", "returns.png", "lengths.png")


def draw(
    found: Mapping[str, Mapping[str, Mapping[int, Result]]], scores: Mapping[str, Mapping[str, Score]], out: Path
) -> list[Path]:
    """Draw what there is something to draw of; pictures of an earlier report are removed.

    Args:
        found: task to player to training seed to result.
        scores: task to player to score, the data among the players.
        out: folder for the pictures.
    """
    for stale in chain.from_iterable(map(out.glob, _STALE)):
        stale.unlink()
    return [*_of_scores(scores, out), *_of_curves(found, out), *_of_mazes(found, out)]


def _of_scores(scores: Mapping[str, Mapping[str, Score]], out: Path) -> Iterator[Path]:
    plot_scores({task: _bars(task, players) for task, players in scores.items()}, out / "scores.png")
    yield out / "scores.png"
    better = {task: improvements(players, ordered(_played(players))) for task, players in scores.items()}
    if any(better.values()):
        plot_improvements({task: of for task, of in better.items() if of}, out / "improvement.png")
        yield out / "improvement.png"
    plot_returns_beside_data(scores, out / "returns.png")
    yield out / "returns.png"
    plot_lengths(scores, out / "lengths.png")
    yield out / "lengths.png"


def _of_curves(found: Mapping[str, Mapping[str, Mapping[int, Result]]], out: Path) -> Iterator[Path]:
    curves = {
        task: {
            name: kept
            for name in ordered(players)
            if (kept := [run.curves for run in players[name].values() if run.curves])
        }
        for task, players in found.items()
    }
    trained = {task: runs for task, runs in curves.items() if runs}
    if trained:
        plot_returns(trained, out / "learning_curves.png")
        yield out / "learning_curves.png"
    for task, runs in trained.items():
        plot_losses({name: seeds[0] for name, seeds in runs.items()}, out / f"losses_{task}.png")
        yield out / f"losses_{task}.png"


def _of_mazes(found: Mapping[str, Mapping[str, Mapping[int, Result]]], out: Path) -> Iterator[Path]:
    for task, players in found.items():
        first = {name: next(iter(players[name].values())).probe for name in ordered(players)}
        probes = {name: probe for name, probe in first.items() if probe is not None}
        if probes:
            draw_mazes(probes, out / f"maze_values_{task}.png", task)
            yield out / f"maze_values_{task}.png"


def _bars(task: str, players: Mapping[str, Score]) -> list[Bar]:
    published = registration.task(task).scores.normalized
    return [
        Bar(name, ours.normalized, ours.over_episodes, published.get(name), ours.over_seeds)
        for name in ordered(players)
        for ours in [players[name]]
    ]


def _played(players: Mapping[str, Score]) -> list[str]:
    return [name for name, score in players.items() if score.by_seed]
