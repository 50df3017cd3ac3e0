from pathlib import Path

from lmrl.evaluation.curves import Curve, find_metrics, read_curves

METRICS = """\
epoch,eval/maze_fo/return_mean,step,train/loss
0,,9,2.5
0,-50.0,20,
0,,19,nan
1,,29,inf
1,-40.0,40,1.5
1,,4
"""


def test_gaps_are_passed_over_and_steps_ascend(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(METRICS + "1,,30,1.75\n2,,")
    assert read_curves(path) == {
        "train/loss": Curve([9, 30, 40], [2.5, 1.75, 1.5]),
        "eval/maze_fo/return_mean": Curve([20, 40], [-50.0, -40.0]),
    }


def test_an_empty_file_has_no_curves(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("")
    assert read_curves(tmp_path / "metrics.csv") == {}


def test_metrics_are_found_below(tmp_path: Path) -> None:
    assert find_metrics(tmp_path) is None
    path = tmp_path / "version_0" / "metrics.csv"
    path.parent.mkdir()
    path.write_text("step\n")
    assert find_metrics(tmp_path) == path
