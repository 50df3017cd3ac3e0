from pathlib import Path

from lmrl.commands.metrics import continued_metrics


def test_rows_of_before_and_after_stay_together(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,train/loss\n1,0.5\n2,0.4\n")
    with continued_metrics(tmp_path):
        assert not (tmp_path / "metrics.csv").exists()  # nothing for the logger to delete
        (tmp_path / "metrics.csv").write_text("step,val/loss\n3,0.3\n")
    assert (tmp_path / "metrics.csv").read_text().split() == ["step,train/loss,val/loss", "1,0.5,", "2,0.4,", "3,,0.3"]
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.csv"]


def test_a_killed_run_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "metrics.before.csv").write_text("step,train/loss\n1,0.5\n")
    (tmp_path / "metrics.csv").write_text("step,train/loss\n2,0.4\n")
    with continued_metrics(tmp_path):
        pass
    assert (tmp_path / "metrics.csv").read_text().split() == ["step,train/loss", "1,0.5", "2,0.4"]


def test_a_first_run_is_left_alone(tmp_path: Path) -> None:
    with continued_metrics(tmp_path):
        pass
    assert not list(tmp_path.iterdir())
