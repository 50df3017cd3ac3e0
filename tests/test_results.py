"""The committed report is that of the committed records; `tests.test_numbers` has the tables of README and docs."""

import csv
import json

import pytest

import lmrl
from lmrl.evaluation.scores import Score
from lmrl.report.tables import play
from tests.test_numbers import RECORDS, ROOT, of_all, scores_of


def recorded(task: str) -> dict[tuple[str, str], Score]:
    """Each player of a task, as trained and with the settings that were chosen."""
    ways = [(name, way) for name, one in scores_of(task).items() for way in (one, one.tuned) if way is not None]
    return {(name, play(way)): way for name, way in ways}


@pytest.mark.parametrize("task", list(lmrl.tasks()))
def test_the_committed_table_is_that_of_the_records(task: str) -> None:
    cells = json.loads((RECORDS / "table.json").read_text(encoding="utf-8"))["cells"]
    shown = {(cell["name"], cell["play"]): cell for cell in cells if cell["task"] == task}
    assert {*shown} == {*recorded(task)}
    for key, one in recorded(task).items():
        assert shown[key]["normalized"] == pytest.approx(one.normalized), key
        assert shown[key]["episodes"] == one.episodes >= 256
        assert shown[key]["seeds"] == [*one.seeds]


def test_the_table_for_spreadsheets_has_the_same_cells() -> None:
    cells = json.loads((RECORDS / "table.json").read_text(encoding="utf-8"))["cells"]
    with (RECORDS / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [(row["task"], row["name"], float(row["normalized"])) for row in rows] == [
        (cell["task"], cell["name"], cell["normalized"]) for cell in cells
    ]


@pytest.mark.parametrize("page", ["README.md", "results/cpu/report.md"])
def test_a_page_shows_the_table_of_the_records(page: str) -> None:
    assert of_all() in (ROOT / page).read_text(encoding="utf-8")
