"""``lmrl plot``: a picture of what runs have logged."""

from pathlib import Path

import matplotlib.image
import pytest
from matplotlib.axes import Axes

from lmrl.cli import main
from lmrl.commands import plot

FIRST = "step,train/loss,eval/maze_fo/return_mean,time/train_seconds\n1,2.0,,1\n2,1.5,-30,2\n4,1.0,-20,4\n"
SECOND = "step,train/loss,rollout/episodes,time/train_seconds\n1,3.0,64,1\n2,2.5,128,2\n"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, rows in (("maze/bc", FIRST), ("maze/ppo", SECOND)):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "metrics.csv").write_text(rows)
    return tmp_path


def test_a_panel_for_each_key_and_a_line_for_each_run(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = []
    draw = plot.plot_runs
    monkeypatch.setattr(plot, "plot_runs", lambda *its: drawn.append(its) or draw(*its))
    assert main(["plot", "maze/bc", "maze/ppo", "maze/../maze/bc", "--out", "pictures/two.png"]) == 0
    ((curves, keys, path, along),) = drawn
    assert [*curves] == ["bc", "ppo"]
    assert keys == ["eval/maze_fo/return_mean", "train/loss"]
    assert along is None
    assert matplotlib.image.imread(path).shape[1] > 300
    assert "written: pictures/two.png" in capsys.readouterr().out
    assert main(["plot", "maze/bc/metrics.csv", "--curves", "train/loss", "--along", "minutes", "--out", "a.svg"]) == 0
    assert Path("a.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["maze"], ""),
        (["nowhere"], "nowhere holds no metrics.csv"),
        (["maze/bc", "--curves", "train/los"], "no run has logged train/los; the nearest keys are train/loss"),
        (["maze/bc", "--along", "days"], "unknown --along 'days'"),
        (["maze/bc", "--along", "episodes"], "bc did not log rollout/episodes"),
        (["maze/bc", "--out", "a.txt"], "--out must end in .png"),
    ],
)
def test_mistakes_are_one_line(words: list[str], said: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", *words]) == (2 if said else 0)
    assert said in capsys.readouterr().err


def test_losses_of_held_out_episodes_are_drawn_without_being_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("maze/bc/metrics.csv").write_text("step,train/loss,val/loss\n1,2.0,2.5\n2,1.5,2.0\n")
    drawn = []
    monkeypatch.setattr(plot, "plot_runs", lambda curves, keys, *more: drawn.extend(keys))
    assert main(["plot", "maze/bc"]) == 0
    assert drawn == ["train/loss", "val/loss"]


def test_rounds_before_the_first_step_are_one_point(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A critic's warm-up plays rounds without a step."""
    Path("maze/ppo/metrics.csv").write_text("step,rollout/return_mean\n0,-4.0\n0,-2.0\n1,-1.0\n")
    drawn = []
    plotted = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda axis, *its, **more: drawn.append(its) or plotted(axis, *its, **more))
    assert main(["plot", "maze/ppo"]) == 0
    assert drawn[0] == ([0, 1], [-3.0, -1.0])


def test_minutes_pass_evenly_between_two_evaluations(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is logged with evaluations alone: at steps 4 and 8, and losses at every second step, the last after them."""
    rows = ["2,3.0,,", "4,2.5,-30,120", "6,2.0,,", "8,1.5,-20,480", "10,1.0,,"]
    header = "step,train/loss,eval/maze_fo/return_mean,time/train_seconds"
    Path("maze/bc/metrics.csv").write_text("\n".join([header, *rows]) + "\n")
    drawn = []
    plotted = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda axis, *its, **more: drawn.append([*its[0]]) or plotted(axis, *its, **more))
    words = ["plot", "maze/bc", "--along", "minutes", "--curves", "eval/maze_fo/return_mean", "train/loss"]
    assert main(words) == 0
    returns, losses = drawn
    assert returns == [2.0, 8.0]
    assert losses == [1.0, 2.0, 5.0, 8.0, 10.0]  # after the last evaluation at the mean pace of the run
