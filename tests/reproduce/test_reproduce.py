import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from lmrl.cli import main
from lmrl.errors import UserError
from lmrl.reproduce import Order, reproduce
from lmrl.reproduce.progress import summary

ROOT = Path(__file__).parents[2]
KILLED = """
import sys
from pathlib import Path
from lmrl.reproduce import Order, reproduce

order = Order(["maze_fo"], ["mc"], runs=Path("runs"), episodes=5, data_size=12)
reproduce(order, launcher=[sys.executable, "launcher.py"])
"""


def reproduced(given: Order, **settings: Any) -> str:
    """Run `reproduce` with the stand-in for its commands; return what it shows, with a final error as the last line."""
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    try:
        reproduce(given, launcher=(sys.executable, "launcher.py"), console=console, **settings)
    except UserError as error:
        shown.write(f"error: {error}")
    return shown.getvalue()


def test_everything_from_data_to_report(
    place: Path, order: Callable[..., Order], trained: Callable[[], list[str]], words_of: Callable[[str], list[str]]
) -> None:
    given = order("mc", "bc", seeds=(0, 1), overrides=["--trainer.max_steps=9"])
    shown = reproduced(given, command="lmrl reproduce maze_fo")
    assert trained() == ["bc", "mc", "bc", "mc"]
    first = words_of("runs/maze_fo/mc")
    assert first[:4] == ["--config", "configs/maze_fo/mc.yaml", "--seed_everything", "0"]
    assert first[-1] == "--trainer.max_steps=9"
    second = words_of("runs/seed_1/maze_fo/mc")
    assert second[3] == "1" and "--model.init_args.pretrained=runs/seed_1/maze_fo/bc" in second
    scores = json.loads((place / "runs/seed_1/maze_fo/mc/evaluation/scores.json").read_text())
    assert (scores["seed"], scores["episodes"], scores["policy"]) == (1, 5, "runs/seed_1/maze_fo/mc")
    assert {path.name for path in (place / "runs/maze_fo").iterdir()} == {
        *("bc", "mc", "random", "behaviour", "optimal", "data")
    }
    cell = json.loads((place / "runs/maze_fo/mc/cell.json").read_text())
    assert cell["tokens"] == {"played": 0, "trained": 700, "played_last": 0, "played_tuned": 0} and cell["steps"] == {
        "last": 70
    }
    assert set(cell["cpu_seconds"]) == set(cell["seconds"])
    assert set(cell["seconds"]) == {"fit", "evaluate", "tune", "evaluate_tuned", "total"} and cell["last"] == cell[
        "scores"
    ] == scores | {
        "seed": 0,
        "policy": "runs/maze_fo/mc",
    }
    assert "[6 of 8] maze_fo/mc: done in" in shown and "[8 of 8] maze_fo/mc seed 1: training 9 steps" in shown
    assert "8 cells, 0 of them finished before" in shown and "report: report/report.html" in shown
    page = (place / "report/report.md").read_text()
    assert "    lmrl reproduce maze_fo\n" in page and "--seed_everything 0" in page
    assert "done in" in (place / "report/log.txt").read_text()
    assert reproduced(given).startswith("8 cells, 8 of them finished before\n") and len(trained()) == 4


@pytest.mark.usefixtures("no_pictures")
def test_a_failure_is_told_and_the_rest_goes_on(
    place: Path, order: Callable[..., Order], trained: Callable[[], list[str]]
) -> None:
    (place / "break-mc").touch()
    shown = reproduced(order("bc", "mc", "ilql"))
    assert trained() == ["bc", "ilql"]
    assert "maze_fo/mc: FAILED (log: runs/maze_fo/mc/log.txt)" in shown
    assert "exit code 3" in shown and "out of luck" in shown and "progress 1 %" not in shown
    assert "error: 1 of 7 cells failed: maze_fo/mc" in shown
    assert "no evaluation of MC was found" in (place / "report/report.html").read_text()


@pytest.mark.parametrize("records", [None, Path("records")])
def test_a_table_of_which_every_cell_failed_names_the_failures(
    records: Path | None, place: Path, order: Callable[..., Order]
) -> None:
    """Without results there is no report, whose error would name the same command again."""
    (place / "launcher.py").write_text("raise SystemExit(3)")
    shown = reproduced(order("bc"), records=records)
    assert shown.splitlines()[-1].startswith("error: 5 of 5 cells failed: maze_fo/data")


@pytest.mark.nightly
def test_killed_in_mid_cell_and_started_again(
    place: Path, order: Callable[..., Order], trained: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGKILL, which no process can catch, finished cells stay, and the training resumes from its checkpoint."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (place / "stop-mc").touch()
    checkpoint = place / "runs/maze_fo/mc/last.ckpt"
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.DEVNULL) as parent:
        while parent.poll() is None and not checkpoint.is_file():
            time.sleep(0.02)
        parent.send_signal(signal.SIGKILL)
        assert parent.wait(20) == -signal.SIGKILL
    assert trained() == ["bc", "mc"] and not (place / "runs/maze_fo/mc/cell.json").is_file()
    before = {path: path.stat().st_mtime_ns for path in place.glob("runs/maze_fo/*/cell.json")}
    assert {path.parent.name for path in before} == {"data", "random", "behaviour", "optimal", "bc"}
    shown = reproduced(order("mc"))
    assert "6 cells, 5 of them finished before" in shown and "training resumes from last.ckpt, 70 steps" in shown
    assert trained() == ["bc", "mc", "mc-again"]
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert json.loads((place / "runs/maze_fo/mc/timing.json").read_text())["fit"]["before"] > 0


@pytest.mark.parametrize(("tasks", "algorithms"), [(["maze_f"], ["bc"]), (["maze_fo"], ["dqn"])])
def test_unknown_names_are_told_before_anything_runs(place: Path, tasks: list[str], algorithms: list[str]) -> None:
    with pytest.raises(UserError, match="known"):
        reproduce(Order(tasks, algorithms, Path("runs")))
    assert not (place / "runs").exists() and not (place / "data").exists()


@pytest.mark.parametrize(
    ("words", "runs", "report"),
    [
        ("", "runs", "report"),
        ("--smoke", "runs/smoke", "report/smoke"),
        ("--smoke --preset gpu", "runs/gpu/smoke", "report/smoke"),
        ("--smoke --runs mine --report page", "mine", "page"),
    ],
)
def test_a_smoke_test_has_folders_of_its_own(
    words: str, runs: str, report: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list[tuple[Path, ...]]()

    def noted(order: Order, *, report: Path, records: Path, **more: Any) -> None:
        found.append((order.runs, report, records))

    monkeypatch.setattr("lmrl.commands.reproduce.reproduce", noted)
    assert main(["reproduce", "maze_fo", "--algorithms", "bc", "--records", "results", *words.split()]) == 0
    assert found == [(Path(runs), Path(report), Path("results/smoke" if "--smoke" in words else "results"))]


def test_wrong_counts(order: Callable[..., Order]) -> None:
    with pytest.raises(UserError, match="jobs must be at least 1, got 0"):
        reproduce(order("bc"), jobs=0)
    with pytest.raises(UserError, match="seeds must be at least 1, got 0"):
        reproduce(order("bc", seeds=()))


def test_every_number_is_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"normalized": -100.4, "normalized_ci": [-110.5, -90.3], "return_mean": -390.46, "success_rate": 1.0}
    names = ("data", "bc", "filtered_bc", "online_filtered_bc", "ilql_to_online", "symbolic_q_offline")
    tuned = SimpleNamespace(scores=scores | {"normalized": -50.2, "normalized_ci": [-60.1, -40.9]})
    results = {name: {0: SimpleNamespace(scores=scores, tuned=tuned)} for name in names[1:]}
    results[names[0]] = {0: SimpleNamespace(scores=scores, tuned=None)}
    monkeypatch.setitem(summary.__globals__, "read_records", lambda runs, task: results)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary(Path("runs"), ["maze_fo", "twenty_questions"]))
    lines = console.export_text().replace("\u2212", "-").splitlines()
    assert "as trained [95 %]" in lines[1] and "tuned [95 %]" in lines[1]
    assert sum("-100.4 [-110.5, -90.3]" in line and "100.0 %" in line for line in lines) == 12
    assert sum("-50.2 [-60.1, -40.9]" in line for line in lines) == 10
    assert [line.strip() for line in lines if line.strip() in ("maze_fo", "twenty_questions")] == [
        "maze_fo",
        "twenty_questions",
    ]
    assert "…" not in "".join(lines)
