"""``lmrl community``: from an evaluation to a row, and the check of the files."""

from pathlib import Path

import pytest

from lmrl.cli import main
from lmrl.evaluation.community import read_community


def add(folder: Path, file: Path, *more: str) -> int:
    said = ["--method", "opener", "--model", "none", "--minutes", "0", "--device", "none", "--by", "somebody"]
    return main(
        ["community", "add", str(folder), "--to", str(file), *said, "--code", "https://example.org/mine", *more]
    )


def test_an_evaluation_becomes_a_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    played, file = tmp_path / "played", tmp_path / "mine.csv"
    assert main(["evaluate", "wordle", "--policy", "opener", "--out", str(played), "--seed", "2"]) == 0
    assert add(played, file) == add(played, file) == 0  # the second replaces the first
    assert add(played, file, "--training_seed", "1") == 0
    rows = read_community([file])
    assert [(row.task, row.training_seed, row.evaluation_seed, row.weights) for row in rows] == [
        ("wordle", 0, 2, ""),
        ("wordle", 1, 2, ""),
    ]
    capsys.readouterr()
    assert main(["community", "check", str(file)]) == 0
    told = capsys.readouterr().out
    assert "2 seeds, 0 min" in told, "a scripted player has no settings"
    assert "wordle" in told and "2 rows in 1 file: all keep the rules" in told


def test_what_is_no_evaluation_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert add(tmp_path, tmp_path / "mine.csv") == 2
    assert "there is no" in capsys.readouterr().err and not (tmp_path / "mine.csv").exists()


def test_a_broken_file_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.csv").write_text("no head\n", encoding="utf-8")
    assert main(["community", "check", str(tmp_path / "x.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
