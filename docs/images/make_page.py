"""Draw ``page.png``: the page of `lmrl web` at the end of a game: ``PYTHONPATH=. python docs/images/make_page.py``.

It needs playwright and a Chromium.
"""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import sync_playwright

from benchmarks import first_game

WORDS = ("web", "--policy", "zoo:maze_fo/ilql", "--seed", "5")
SIZE = {"width": 1000, "height": 760}


def main() -> None:
    """Play and draw."""
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        tab = chromium.new_page(viewport=SIZE)
        with first_game.demo(Path(folder), WORDS) as address:
            tab.goto(address)
            tab.wait_for_selector(".facts .good", timeout=300_000)
            tab.screenshot(path=Path(__file__).with_name("page.png"))
        chromium.close()


if __name__ == "__main__":
    main()
