"""Figures as rows, files and comparisons."""

import json
import os
import platform
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import results
from benchmarks.machine import facts, slug
from benchmarks.row import Row
from tests.helpers.cases import cases

MACHINE = {"cpu": "Some(R) Processor @ 2.50GHz", "cores": 2, "threads": 1}
FACTS = {"machine": MACHINE, "versions": {"torch": "2"}, "commit": "abc", "date": "2026-01-01 00:00 UTC", "load": 0.5}
SPEED = Row("speed", 1000.0, "steps/s", "higher", ">= 900 steps/s")
TIME = Row("time", 2.0, "s", "lower", digits=2)
RATIO = Row("ratio", 3.04, "x", "higher", digits=1)
FACT = Row("peak", 5.0, "TFLOP/s")


@cases(
    ("row", "shown"),
    [
        (Row("a", 1234.5, "steps/s"), "1,234 steps/s"),
        (Row("a", 3.04, "x", digits=1), "3.0x"),
        (Row("a", 45.25, "% of peak", digits=1), "45.2% of peak"),
        (Row("a", 0.125, digits=2), "0.12"),
        (Row("a", 0.125, shown="1/8"), "1/8"),
        (Row("a", None, shown="no browser"), "no browser"),
    ],
)
def test_a_figure_in_print(row: Row, shown: str) -> None:
    assert row.measured == shown
    assert str(row) == f"a | {shown} | "


def saved(folder: Path, *rows: Row, machine: dict[str, object] = MACHINE) -> Path:
    return results.write(folder, "all", {"toy": rows}, {**FACTS, "machine": machine})


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    path = saved(tmp_path, SPEED, TIME)
    assert path.name == "all-some-processor-2-50ghz-2-cores.json"
    record = results.read(path)
    assert record["machine"] == MACHINE and record["commit"] == "abc"
    expected = {"name": "speed", "value": 1000.0, "unit": "steps/s", "better": "higher", "asked": ">= 900 steps/s"}
    assert record["rows"][0] == {"benchmark": "toy", **expected, "shown": "1,000 steps/s"}
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "## all-some-processor-2-50ghz-2-cores\n" in page and "### toy\n" in page
    assert "| speed | 1,000 steps/s | >= 900 steps/s |" in page
    assert "2 cores, threads of torch: 1." in page
    assert "torch 2; commit abc, 2026-01-01 00:00 UTC, load before 0.5" in page


def test_a_gpu_names_the_file() -> None:
    assert slug({**MACHINE, "gpu": "NVIDIA H200"}) == "nvidia-h200"


def test_the_facts_name_neither_the_host_nor_a_place() -> None:
    found = facts()
    assert {"cpu", "cores", "threads"} == set(found["machine"])
    assert {"python", "torch", "transformers", "lightning"} <= set(found["versions"])
    said = json.dumps(found)
    assert platform.node() not in said and os.sep not in said


def worse(tmp_path: Path, *new: Row, old: tuple[Row, ...] = (SPEED, TIME, RATIO), **machine: object) -> list[str]:
    record = results.read(saved(tmp_path, *old))
    return results.compare(record, {"toy": list(new)}, {**MACHINE, **machine}).regressions


@cases(
    ("better", "old", "new", "expected"),
    [
        ("higher", 100.0, 91.0, False),
        ("higher", 100.0, 89.0, True),
        ("higher", 100.0, 200.0, False),
        ("lower", 100.0, 109.0, False),
        ("lower", 100.0, 111.0, True),
        ("lower", 100.0, 50.0, False),
        ("higher", -100.0, -100.0, False),
        ("higher", -100.0, -109.0, False),
        ("higher", -100.0, -111.0, True),
        ("lower", -100.0, -91.0, False),
        ("lower", -100.0, -89.0, True),
        ("lower", -100.0, -200.0, False),
        ("lower", 0.0, 0.0, False),
        (None, 100.0, 1.0, False),
        (None, 100.0, 1000.0, False),
    ],
)
def test_more_than_a_tenth_worse_is_a_regression(better: str | None, old: float, new: float, expected: bool) -> None:
    assert results.is_worse(old, new, better) is expected


def test_regressions_are_named(tmp_path: Path) -> None:
    slow = Row("speed", 800.0, "steps/s", "higher")
    long = Row("time", 2.5, "s", "lower")
    assert worse(tmp_path, SPEED, TIME, RATIO) == []
    assert worse(tmp_path, slow, long, RATIO) == ["toy: speed", "toy: time"]


def test_on_another_machine_ratios_are_compared_alone(tmp_path: Path) -> None:
    slow = Row("speed", 8.0, "steps/s", "higher")
    less = Row("ratio", 2.0, "x", "higher")
    for other in ({"cpu": "another"}, {"threads": 2}, {"gpu": "NVIDIA H200"}):
        assert worse(tmp_path, slow, TIME, RATIO, **other) == []
        assert worse(tmp_path, slow, TIME, less, **other) == ["toy: ratio"]
    record = results.read(saved(tmp_path, SPEED, RATIO))
    lines = results.compare(record, {"toy": [SPEED, RATIO]}, {**MACHINE, "threads": 2}).lines
    assert lines[0].endswith("only ratios are comparable")
    assert [line for line in lines if "speed" in line] == []


def test_rows_of_one_run_alone_are_named(tmp_path: Path) -> None:
    record = results.read(saved(tmp_path, SPEED, FACT))
    lines = results.compare(record, {"toy": [TIME, FACT]}, MACHINE).lines
    assert "toy: time: only in the new run" in lines
    assert "toy: speed: only in the old run" in lines
    assert results.compare(record, {"other": [TIME]}, MACHINE).lines == ["other: time: only in the new run"]


def test_what_was_not_measured_is_no_regression(tmp_path: Path) -> None:
    gone = Row("speed", None, "steps/s", "higher", shown="no engine")
    assert worse(tmp_path, gone) == []
    assert worse(tmp_path, SPEED, old=(gone,)) == []
    assert worse(tmp_path, Row("time", 1.0, "s", "lower"), old=(Row("time", 0.0, "s", "lower"),)) == ["toy: time"]


def halved(old: Path, new: Path) -> Path:
    """The record with half of its first number."""
    record = json.loads(old.read_text())
    record["rows"][0]["value"] /= 2
    new.write_text(json.dumps(record))
    return new


def run(*words: str | Path) -> int:
    return command.main(list(map(str, words)))


def test_the_command_writes_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("memory", "--out", tmp_path) == 0
    (path,) = tmp_path.glob("memory-*.json")
    assert f"## {path.stem}" in (tmp_path / "README.md").read_text(encoding="utf-8")
    assert run("memory", "--out", tmp_path, "--compare", path) == 0
    better = halved(path, tmp_path / "better.json")
    capsys.readouterr()
    assert run("memory", "--out", tmp_path, "--compare", better) == 1
    said = capsys.readouterr().out
    assert "new / old 2.00 (lower is better), REGRESSION" in said
    assert "1 regressions" in said


def test_the_old_run_may_be_the_file_that_is_written(tmp_path: Path) -> None:
    assert run("memory", "--out", tmp_path) == 0
    (path,) = tmp_path.glob("memory-*.json")
    halved(path, path)
    assert run("memory", "--out", tmp_path, "--compare", path) == 1
    assert run("memory", "--out", tmp_path, "--compare", path) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["chess"], "unknown benchmark chess"),
        (["memory", "--compare", "nowhere.json"], "--compare needs a JSON file"),
        (["gpu"], "gpu needs a GPU"),
    ],
)
def test_errors(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(*words, "--out", tmp_path) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_another_kind_of_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text("{}")
    assert run("memory", "--out", tmp_path, "--compare", tmp_path / "other.json") == 2
    assert "another kind" in capsys.readouterr().err


def test_all_leaves_the_gpu_out_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(command, "names", lambda: ["gpu_training", "memory"])
    assert run("--out", tmp_path) == 0
    assert "gpu: left out" in capsys.readouterr().out
    assert [path.stem[:4] for path in tmp_path.glob("*.json")] == ["all-"]


def test_every_benchmark_is_found() -> None:
    assert {"training", "decoding", "gpu_training", "gpu_decoding", "engine", "games", "memory"} <= set(command.names())
    assert not {"row", "size", "device", "results"} & set(command.names())
