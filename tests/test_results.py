"""The committed table of before is whole, and the README shows its rows as they are, but those made anew since.

Rows that were made anew are those of `tests.test_numbers`.
"""

import json
from pathlib import Path

import pytest

import lmrl
from lmrl.reproduce import OFFLINE

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "results" / "cpu"


def rows(page: Path, section: str) -> list[str]:
    """Lines of the table in a section, without its head."""
    text = page.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    text = text.split("<!-- end of results -->")[1]
    return [line for line in text.splitlines() if line.startswith("| ")][2:]


@pytest.mark.parametrize("task", list(lmrl.tasks()))
def test_every_cell_is_there(task: str) -> None:
    cells = json.loads((FOLDER / "table.json").read_text(encoding="utf-8"))["cells"]
    played = {cell["name"]: cell["episodes"] for cell in cells if cell["task"] == task}
    assert all(played.get(name, 0) >= 256 for name in (*OFFLINE, "ppo", "online_filtered_bc"))


def test_the_readme_shows_the_committed_table() -> None:
    report = FOLDER / "report.md"
    table = report.read_text(encoding="utf-8").split("\n### ")[0]
    shown = rows(ROOT / "README.md", "Results")
    anew = {path.parent.parent.name for path in FOLDER.glob("*/bc/cell.json")}
    assert {row.split(" | ")[0][2:] for row in shown} == {*lmrl.tasks()} - anew
    assert all(f"{row}\n" in f"{table}\n" for row in shown)
