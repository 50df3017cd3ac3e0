"""Where curves stand in a picture."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from lmrl.evaluation.curves import Curve
from lmrl.report.pictures import EPISODES, plot_health, plot_losses, plot_returns, plot_runs


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[float], list[float]]]:
    """The points of each line that is drawn."""
    lines: list[tuple[list[float], list[float]]] = []
    plot = Axes.plot

    def noted(axis: Axes, x: Any, y: Any, *more: Any, **settings: Any) -> Any:
        lines.append((list(x), list(y)))
        return plot(axis, x, y, *more, **settings)

    monkeypatch.setattr(Axes, "plot", noted)
    return lines


def test_an_evaluation_stands_at_the_episodes_that_its_policy_has_learned_from(
    tmp_path: Path, drawn: list[tuple[list[float], list[float]]]
) -> None:
    """The next round is logged at the step of the evaluation before it."""
    curves = {
        "rollout/episodes": Curve([0, 4, 8], [64.0, 128.0, 192.0]),
        "rollout/return_mean": Curve([0, 4, 8], [1.0, 2.0, 3.0]),
        "eval/maze_fo/return_mean": Curve([4, 6, 8], [5.0, 6.0, 7.0]),
    }
    plot_runs({"ppo": curves}, ["eval/maze_fo/return_mean", "rollout/return_mean"], tmp_path / "a.png", EPISODES)
    assert drawn == [([64, 128, 128], [5, 6, 7]), ([64, 128, 192], [1, 2, 3])]
    drawn.clear()
    plot_returns({"maze_fo": {"ppo": [curves]}}, tmp_path / "b.png", EPISODES)
    assert drawn == [([64, 128, 128], [5, 6, 7])]


def test_each_of_many_runs_has_a_line_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    styles = set()
    plot = Axes.plot

    def noted(axis: Axes, *points: Any, **settings: Any) -> Any:
        styles.add((settings["color"], settings.get("linestyle")))
        return plot(axis, *points, **settings)

    monkeypatch.setattr(Axes, "plot", noted)
    plot_health({str(n): {"health/return": Curve([1, 2], [0.0, n])} for n in range(8)}, tmp_path / "a.png")
    assert len(styles) == 8
    styles.clear()
    plot_losses({"bc": {f"bc/{n}_loss": Curve([1, 2], [0.0, 1.0]) for n in "abcdefgh"}}, tmp_path / "b.png")
    assert len(styles) == 8


def test_what_is_smoothed_is_drawn_as_it_was_logged_too_and_evaluations_are_not_smoothed(
    tmp_path: Path, drawn: list[tuple[list[float], list[float]]]
) -> None:
    steps = [*range(100)]
    values = [float(step % 2) for step in steps]
    curves = {"train/loss": Curve(steps, values), "eval/maze_fo/return_mean": Curve(steps, values)}
    plot_runs({"bc": curves}, ["train/loss", "eval/maze_fo/return_mean"], tmp_path / "a.png")
    logged, smoothed, returns = drawn
    assert logged == returns == (steps, values)
    assert smoothed[0] == steps and max(smoothed[1][1:-1]) < 1
    drawn.clear()
    plot_health({"ppo": {"health/return": Curve(steps, values)}}, tmp_path / "b.png")
    assert drawn == [logged, smoothed]
    drawn.clear()
    plot_losses({"bc": {"train/loss": Curve(steps, values)}}, tmp_path / "c.png")
    assert drawn == [logged, smoothed]


def test_a_seed_that_fell_stays_in_the_curve(tmp_path: Path, drawn: list[tuple[list[float], list[float]]]) -> None:
    whole = {"eval/maze_fo/return_mean": Curve([200, 400, 600], [10.0, 20.0, 30.0])}
    fallen = {"eval/maze_fo/return_mean": Curve([200, 316], [10.0, -10.0])}
    plot_returns({"maze_fo": {"ppo": [fallen, whole]}}, tmp_path / "a.png")
    assert drawn == [([200, 400, 600], [10, 5, 10])]
