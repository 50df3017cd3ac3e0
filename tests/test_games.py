"""The games that the pages of the tasks show: of every task, linked, and what its environment would play again."""

import re
from pathlib import Path

import pytest

from lmrl.cli import main
from lmrl.data.storage import read_episodes, read_metadata
from lmrl.envs import registry
from lmrl.play.viewer import write_view
from tests.helpers.browser import in_browser
from tests.helpers.cases import cases

DOCS = Path(__file__).parents[1] / "docs"


@cases("task", registry.tasks())
def test_games_replay(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = DOCS / "games" / f"{task}.jsonl"
    assert main(["data", "verify", str(path)]) == 0, "python docs/games/make.py"
    players = read_metadata(path)["players"]
    assert len(list(read_episodes(path))) == 3 * len(players) and players[0] == "behaviour"


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", ["wordle", *(pytest.param(task, marks=pytest.mark.nightly) for task in ("chess", "maze_fo"))]
)
def test_everyone_can_read_their_pages(task: str, tmp_path: Path) -> None:
    write_view(DOCS / "games" / f"{task}.jsonl", tmp_path / "page.html")
    in_browser(tmp_path / "page.html", "return null;")


def test_each_is_linked_by_a_page() -> None:
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "reference" / "tasks").glob("*.md")]
    linked = {name for page in pages for name in re.findall(r"\]\(\.\./\.\./games/(\w+)\.jsonl\)", page)}
    assert linked == {path.stem for path in (DOCS / "games").glob("*.jsonl")} == set(registry.tasks())
