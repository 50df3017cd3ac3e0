"""Files of results of others: what is read, what is refused, how the table sums them up."""

import csv
from pathlib import Path
from typing import Any

import pytest

from lmrl.errors import UserError
from lmrl.evaluation.community import method_scores, read_community, row_of, write_community

ROOT = Path(__file__).parents[2]
SCORES: dict[str, Any] = {
    "task": "car_dealer",
    "episodes": 256,
    "seed": 3,
    "return_mean": 40.0,
    "return_ci": [38.0, 42.0],
    "success_rate": 0.75,
    "illegal_rate": 0.01,
    "provenance": {"versions": {"lmrl": "0.1.0"}, "env": {}, "weights": "0" * 32},
}
SAID = {
    "method": "mine",
    "model": "GPT-2 small",
    "training_seed": 0,
    "minutes": 12.5,
    "device": "one GPU",
    "code": "https://example.org/mine",
    "by": "somebody",
    "date": "2026-01-31",
}


def file_of(folder: Path, *changes: dict[str, str]) -> Path:
    """Rows that keep the rules but for the changes."""
    path = folder / "results.csv"
    write_community([row_of(SCORES, path, **SAID)], path)
    with path.open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerows({**row, **change} for change in changes)
    return path


def test_the_files_of_the_repository_keep_the_rules() -> None:
    assert read_community(sorted((ROOT / "results" / "community").glob("*.csv")))


def test_an_evaluation_comes_back_as_it_was(tmp_path: Path) -> None:
    row = row_of(SCORES, tmp_path, **SAID)
    write_community([row], tmp_path / "mine.csv")
    assert read_community([tmp_path / "mine.csv"]) == [row]
    assert (row.return_low, row.return_mean, row.return_high) == (38.0, 40.0, 42.0)
    assert (row.evaluation_seed, row.weights, row.lmrl) == (3, "0" * 32, "0.1.0")


@pytest.mark.parametrize(
    ("column", "text", "told"),
    [
        ("task", "chequers", "unknown task"),
        ("episodes", "255", "episodes must be at least 256"),
        ("episodes", "1e3", "episodes must be a whole number"),
        ("return_mean", "nan", "return_mean must be a finite number"),
        ("return_mean", "43", "between return_low and return_high"),
        ("success_rate", "1.01", r"in \[0, 1\]"),
        ("illegal_rate", "-0.1", r"in \[0, 1\]"),
        ("temperature", "-0.1", "temperature must be at least 0"),
        ("top_p", "0", "top_p must be above 0 and at most 1"),
        ("temperature", "cold", "temperature must be a finite number"),
        ("beta", "inf", "beta must be a finite number"),
        ("minutes", "-1", "at least 0"),
        ("training_seed", "-1", "a whole number from 0"),
        ("weights", "abc", "hexadecimal"),
        ("lmrl", "newest", "a version"),
        ("code", "javascript:alert(1)", "https://"),
        ("code", "https://example.org/x)](http://elsewhere", "https://"),
        ("method", "<script>", "letters"),
        ("method", "a | b", "letters"),
        ("by", "", "letters"),
        ("by", "two\nlines", "letters"),
        ("date", "yesterday", "a date"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_its_place(tmp_path: Path, column: str, text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        read_community([file_of(tmp_path, {column: text})])


def test_tasks_with_fixed_starts_ask_as_many_of_each(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 275"):
        read_community([file_of(tmp_path, {"task": "maze_fo"})])


def test_a_line_of_another_length_and_another_head_are_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, {})
    whole = path.read_text(encoding="utf-8")
    for text in (whole.rstrip("\n") + ",more\n", whole.rpartition(",")[0] + "\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="columns"):
            read_community([path])
    path.write_text(whole.replace("task,", "game,"), encoding="utf-8")
    with pytest.raises(UserError, match="the first line must be task,method"):
        read_community([path])


def test_one_training_seed_stands_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"line 3: the same training seed .* as .*line 2"):
        read_community([file_of(tmp_path, {}, {})])


def test_other_settings_of_the_environment_are_refused(tmp_path: Path) -> None:
    other = {**SCORES, "provenance": {**SCORES["provenance"], "env": {"noise": 0.5}}}
    with pytest.raises(UserError, match="their own settings"):
        row_of(other, tmp_path, **SAID)


def test_an_entry_says_with_which_settings_it_played(tmp_path: Path) -> None:
    chosen = {**SCORES, "provenance": {**SCORES["provenance"], "decoding": {"temperature": 0.25, "beta": 4.0}}}
    row = row_of(chosen, tmp_path, **SAID)
    assert (row.temperature, row.beta) == (0.25, 4.0)
    second = row_of(SCORES, tmp_path, **{**SAID, "training_seed": 1})
    assert (second.temperature, second.beta) == (None, None)
    write_community([row, second], tmp_path / "mine.csv")
    assert read_community([tmp_path / "mine.csv"]) == [row, second]
    (entry,) = method_scores([row, second])
    assert entry.settings == "temperature 0.25, beta 4; as trained"


def test_seeds_of_a_method_are_one_entry_and_the_best_entry_comes_first(tmp_path: Path) -> None:
    several = {"return_mean": "38.5", "training_seed": "1", "minutes": "7.5"}
    better = {"method": "better", "return_mean": "41"}
    entries = method_scores(read_community([file_of(tmp_path, {}, several, better)]))
    assert [(entry.method, entry.seeds) for entry in entries] == [("better", 1), ("mine", 2)]
    assert entries[0].spread == (38.0, 42.0)  # over episodes; Car Dealer's published scale is its returns
    assert entries[1].normalized == pytest.approx(39.25) and entries[1].spread == (38.5, 40.0)
    assert entries[1].minutes == 10.0
