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
    results = {name: {0: SimpleNamespace(scores=scores)} for name in names}
    monkeypatch.setitem(summary.__globals__, "read_seeds", lambda runs, task: results)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(summary(Path("runs"), ["maze_fo", "twenty_questions"]))
    lines = console.export_text().replace("\u2212", "-").splitlines()
    assert "normalised [95 %]" in lines[1]
    assert sum("-100.4 [-110.5, -90.3]" in line and "-390.46" in line and "100.0 %" in line for line in lines) == 12
    assert [line.strip() for line in lines if line.strip() in ("maze_fo", "twenty_questions")] == [
        "maze_fo",
        "twenty_questions",
    ]
    assert "…" not in "".join(lines)
