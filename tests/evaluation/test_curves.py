from pathlib import Path

import pytest

from lmrl.errors import UserError
from lmrl.evaluation.curves import Curve, find_metrics, read_curves, values_at

METRICS = """\
epoch,eval/maze_fo/return_mean,step,train/loss
0,,9,2.5
0,-50.0,20,
0,,19,nan
1,,29,inf
1,-40.0,40,1.5
"""


def test_gaps_are_passed_over_and_steps_ascend(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(METRICS + "1,,30,1.75\n2,,")
    assert read_curves(path) == {
        "train/loss": Curve([9, 30, 40], [2.5, 1.75, 1.5]),
        "eval/maze_fo/return_mean": Curve([20, 40], [-50.0, -40.0]),
    }


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,,4", "line 7: 3 cells, but 4 columns"),
        ("1,,x,1.0", "line 7, column 'step': must be a number, got 'x'"),
        ("1,,30,1.2.3", "line 7, column 'train/loss': must be a number, got '1.2.3'"),
        ("1,,30,\ud83d", "is not UTF-8 text"),
        ("1,,30," + "1" * 200_000, "line 7: field larger than field limit"),
    ],
)
def test_a_damaged_cell_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(f"{METRICS}{line}\n1,,31,1.0\n".encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match=message) as error:
        read_curves(path)
    assert str(error.value).startswith(f"{path}")
    path.write_text("epoch,train/loss\n0,1\n")
    with pytest.raises(UserError, match="line 1: must name each column once, one of them step"):
        read_curves(path)


def test_an_empty_file_has_no_curves(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("")
    assert read_curves(tmp_path / "metrics.csv") == {}


def test_metrics_are_found_below(tmp_path: Path) -> None:
    assert find_metrics(tmp_path) is None
    path = tmp_path / "version_0" / "metrics.csv"
    path.parent.mkdir()
    path.write_text("step\n")
    assert find_metrics(tmp_path) == path


def test_a_curve_at_other_steps_has_what_was_logged_last() -> None:
    assert values_at(Curve([5, 9], [30.0, 60.0]), [4, 5, 8, 9, 10]) == [0.0, 30.0, 30.0, 60.0, 60.0]
