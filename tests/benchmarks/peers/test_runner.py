"""Comparisons with other packages: timed in turn, written part by part, left out where a package is missing."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import results
from benchmarks.peers import __main__ as command
from benchmarks.peers.beside import OURS, alternating, beside
from benchmarks.row import Row

MACHINE = {"cpu": "Some Processor", "cores": 1, "threads": 1}


def facts(number: str) -> dict[str, object]:
    made = {"machine": MACHINE, "versions": {"peer": number}, "commit": "abc", "date": "2026-01-01 00:00 UTC"}
    return {**made, "load": 0.0}


def test_ways_take_turns_and_the_first_round_does_not_count() -> None:
    seen = []
    clock = itertools.count(1)

    def way(name: str) -> float:
        seen.append(name)
        return float(next(clock))

    speeds = alternating({name: (lambda name=name: way(name)) for name in ("a", "b")}, repeats=2)  # type: ignore[misc]
    assert seen == ["a", "b"] * 3
    assert speeds == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_rows_hold_medians_and_ranges() -> None:
    speeds = {OURS: [10.0, 30.0, 20.0], "peer": [5.0, 5.0, 40.0]}
    rows = {row.name: row for row in beside("work", "items/s", speeds, {"peer": ">= 2x"})}
    assert [rows[f"work, {name}"].value for name in (OURS, "peer")] == [20.0, 5.0]
    assert rows[f"work, {OURS}"].measured == "20.0 items/s (10.0 to 30.0)"
    ratio = rows[f"work, {OURS} / peer"]
    assert ratio.value == 4.0 and ratio.asked == ">= 2x" and ratio.is_ratio
    assert ratio.measured == "4.00x (0.500 to 6.00)"


def test_parts_are_written_over_their_own_and_beside_the_others(tmp_path: Path) -> None:
    one = Row("speed", 1234.5, "x/s", "higher", ">= 1")
    other = Row("gap", 0.25, shown="a quarter")
    results.write_parts(tmp_path, "peers", {"b": [one], "a": [Row("old", 1.0)]}, {"b": facts("1"), "a": facts("1")})
    path = results.write_parts(tmp_path, "peers", {"a": [other]}, {"a": facts("2")})
    record = results.read(path)
    assert [(row["benchmark"], row["name"], row["shown"]) for row in record["rows"]] == [
        ("a", "gap", "a quarter"),
        ("b", "speed", "1,234 x/s"),
    ]
    assert record["rows"][1]["value"] == 1234.5 and record["rows"][1]["asked"] == ">= 1"
    assert {name: made["versions"] for name, made in record["made"].items()} == {
        "a": {"peer": "2"},
        "b": {"peer": "1"},
    }
    page = (tmp_path / results.PAGE).read_text(encoding="utf-8")
    assert "### a\n\npeer 2; commit abc" in page and "### b\n\npeer 1; commit abc" in page


@pytest.fixture(name="comparison")
def comparison_(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two comparisons: one that needs no package, and one whose package does not exist."""

    def run() -> Iterator[Row]:
        yield Row("speed", 1.0)

    module = SimpleNamespace(PACKAGES=("torch",), run=run)
    monkeypatch.setattr(command, "import_module", lambda name: module)
    monkeypatch.setattr(command, "NEEDS", {"here": (), "elsewhere": ("no_such_package",)})


@pytest.mark.usefixtures("comparison")
def test_a_comparison_whose_package_is_missing_is_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--out", str(tmp_path)]) == 0
    assert "elsewhere: left out, not installed here: no_such_package" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert {row["benchmark"] for row in record["rows"]} == {"here"}
    assert "torch" in record["made"]["here"]["versions"]


@pytest.mark.usefixtures("comparison")
@pytest.mark.parametrize(
    ("words", "said"),
    [(["nobody"], "comparison"), (["elsewhere"], "error: none of these comparisons can be run here")],
)
def test_what_cannot_be_run_is_said_in_a_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*words, "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_every_comparison_is_listed() -> None:
    files = {path.stem for path in Path(command.__file__).parent.glob("*.py")}
    assert files - {"__init__", "__main__", "beside", "curves"} == set(command.NEEDS)
