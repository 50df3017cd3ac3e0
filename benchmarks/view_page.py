"""How long a browser takes until a page of 10,000 episodes can be used: loaded, drawn, filtered and sorted once."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.row import Row
from lmrl.data import generate
from lmrl.play.viewer import write_view

EPISODES = 10_000
_BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def ready(page: Path, profile: Path) -> float:
    """Seconds from the page's first byte, as the page itself measures them."""
    command = [str(_BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--user-data-dir={profile}"]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r'data-ready="(\d+)"', done.stdout)
    assert found, done.stderr[-2000:]
    return int(found[1]) / 1000


def run() -> Iterator[Row]:
    """The maze's episodes, the median of five times."""
    if _BROWSER is None:
        yield Row("view_page", None, "s", "lower", "< 3 s", shown="no Chromium is installed")
        return
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        write_view(generate("maze_fo", EPISODES, 0, Path(folder, "maze.parquet"), progress=False), page)
        times = [ready(page, Path(folder, f"profile{n}")) for n in range(5)]
        size = page.stat().st_size / 2**20
    yield Row(f"view_page, {EPISODES:,} episodes", median(times), "s", "lower", "< 3 s", 2)
    yield Row(f"view_page, {EPISODES:,} episodes, size", size, "MiB", "lower", digits=1)
