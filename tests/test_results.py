"""The committed table is whole, and the README shows it as it is."""

import json
from pathlib import Path

import pytest

import lmrl
from lmrl.reproduce import OFFLINE, ONLINE

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "results" / "cpu"


def rows(page: Path, section: str) -> list[str]:
    """Lines of the table in a section, without its head."""
    text = page.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| ")][2:]


@pytest.mark.parametrize("task", list(lmrl.tasks()))
def test_every_cell_is_there(task: str) -> None:
    cells = json.loads((FOLDER / "table.json").read_text(encoding="utf-8"))["cells"]
    played = {cell["name"]: cell["episodes"] for cell in cells if cell["task"] == task}
    assert all(played.get(name, 0) >= 256 for name in (*OFFLINE, *ONLINE))


def test_the_readme_shows_the_committed_table() -> None:
    report = FOLDER / "report.md"
    table = report.read_text(encoding="utf-8").split("\n### ")[0]
    shown = rows(ROOT / "README.md", "Results")
    assert len(shown) == len(lmrl.tasks())
    assert all(f"{row}\n" in f"{table}\n" for row in shown)
