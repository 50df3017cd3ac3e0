"""The table at the end of a reproduction is readable at 80 columns."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from lmrl.reproduce.progress import summary


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
