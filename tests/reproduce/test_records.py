"""Small records of cells, and the report that is made of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmrl.evaluation.result_files import write_json
from lmrl.report.report import write_report
from lmrl.reproduce.records import keep


@pytest.fixture
def runs(tmp_path: Path, run_of: Callable[..., Path], player: Any) -> Path:
    runs = tmp_path / "runs"
    for name, folder in (("bc", runs), ("mc", runs), ("bc", runs / "seed_1")):
        cell = run_of(folder, name, player(lambda request: "move down\n"), metrics="step,train/loss\n5,1.5\n")
        write_json({"task": "maze_fo", "tokens": {"trained": 70}}, cell / "cell.json")
        (cell / "best.ckpt").write_bytes(b"weights")
        (cell / "config.yaml").write_text("model: {}\n")
    (runs / "maze_fo" / "mc" / "cell.json").unlink()  # still at work
    write_json({"commands": ["lmrl reproduce maze_fo"], "algorithms": ["bc"]}, runs / "reproduce.json")
    return runs


def test_what_is_kept(runs: Path, tmp_path: Path) -> None:
    records = tmp_path / "records"
    assert keep(runs, records) == [records / "maze_fo" / "bc", records / "seed_1" / "maze_fo" / "bc"]
    kept = {path.relative_to(records / "maze_fo" / "bc").as_posix() for path in (records / "maze_fo").rglob("*.*")}
    assert kept == {
        *("cell.json", "timing.json", "config.yaml", "metrics.csv"),
        *(f"evaluation/{name}" for name in ("scores.json", "episodes.csv", "transcript.txt")),
    }
    assert not (records / "maze_fo" / "mc").exists()


def test_the_report_of_records_is_that_of_the_runs(runs: Path, tmp_path: Path) -> None:
    (runs / "maze_fo" / "mc" / "evaluation" / "scores.json").unlink()
    keep(runs, tmp_path / "records")
    tables = []
    for name in ("runs", "records"):
        write_report(tmp_path / name, tmp_path / f"report of {name}")
        tables.append(json.loads((tmp_path / f"report of {name}" / "table.json").read_text()))
    assert tables[0] == tables[1] and tables[0]["cells"]
    pages = [(tmp_path / f"report of {name}" / "report.md").read_text() for name in ("runs", "records")]
    assert pages[0].replace("runs/maze", "X/maze") == pages[1].replace("records/maze", "X/maze")


def test_cells_of_several_machines_come_together(runs: Path, tmp_path: Path) -> None:
    keep(runs, tmp_path / "records")
    other = tmp_path / "other"
    (other / "maze_fo").mkdir(parents=True)
    (runs / "maze_fo" / "bc").rename(other / "maze_fo" / "filtered_bc")
    write_json({"commands": ["lmrl reproduce"], "algorithms": ["bc", "filtered_bc"]}, other / "reproduce.json")
    keep(other, tmp_path / "records")
    assert {path.name for path in (tmp_path / "records" / "maze_fo").iterdir()} == {"bc", "filtered_bc"}
    assert json.loads((tmp_path / "records" / "reproduce.json").read_text()) == {
        "commands": ["lmrl reproduce maze_fo", "lmrl reproduce"],
        "algorithms": ["bc", "filtered_bc"],
    }
