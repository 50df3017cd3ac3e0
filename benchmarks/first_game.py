"""Seconds from the command of ``make demo`` to its first game: answered, and drawn by a browser where there is one."""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any
from urllib.request import Request, urlopen

from benchmarks.row import Row

WORDS: tuple[str, ...] = ("web", "--policy", "zoo:maze_fo/ilql", "--advisor", "zoo:maze_fo/ilql")
"""After ``lmrl``, as in the Makefile."""
ASKED = "<= 60 s"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_DRAWN = "#seats .picture svg"


@contextmanager
def demo(folder: Path, words: Sequence[str] | None = None) -> Iterator[str]:
    """Run the command in its own process and yield the address that it prints; it ends with the context.

    Args:
        folder: the working directory.
        words: the arguments after ``lmrl``; None: those of ``make demo``.

    Raises:
        RuntimeError: it printed no address.
    """
    words = WORDS if words is None else words
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = str(Path(__file__).parent.parent)
    command = [sys.executable, "-m", "lmrl", *words, "--no-browser", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if " at http" not in line:
                raise RuntimeError(f"{words} printed no address: {line!r}")
            yield line.split(" at ")[1].strip()
        finally:
            process.terminate()


def first_state(address: str) -> dict[str, Any]:
    """Send the requests of a page that opens: for a session, the offer and the first game, whose state is returned."""
    place, _, key = address.partition("#")
    session = _ask(f"{place}open", {"key": key})["session"]
    first = _ask(f"{place}offer", {}, session)["first"]
    return _ask(f"{place}new", first, session)


def _ask(address: str, told: Any, session: str = "") -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "X-Lmrl-Session": session}
    with urlopen(Request(address, json.dumps(told).encode(), headers), timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def seconds_to_answer(folder: Path) -> tuple[float, float]:
    """Return the wall-clock seconds until the answer, and the CPU seconds of all cores until the process has ended."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = monotonic()
    with demo(folder) as address:
        assert first_state(address)["seats"]
        took = monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def seconds_to_draw(folder: Path) -> float | None:
    """Return the wall-clock seconds until an open browser shows the maze, or None if there is no browser."""
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if browser is None:
        return None
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        tab = chromium.new_page()
        start = monotonic()
        with demo(folder) as address:
            tab.goto(address)
            tab.wait_for_selector(_DRAWN, timeout=120_000)
            took = monotonic() - start
        chromium.close()
    return took


def run(repeats: int = 3) -> Iterator[Row]:
    """Rows for `python -m benchmarks`: medians; a run before them fills the disk's cache."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        clock, cores = zip(*[seconds_to_answer(folder) for _ in range(repeats + 1)][1:], strict=True)
        yield Row("make demo, to the first game answered", statistics.median(clock), "s", "lower", ASKED, 1)
        yield Row("make demo, to the first game answered, all cores", statistics.median(cores), "s", "lower", "", 1)
        drawn = [took for took in (seconds_to_draw(folder) for _ in range(repeats)) if took is not None]
        if drawn:
            yield Row("make demo, to the first game drawn", statistics.median(drawn), "s", "lower", ASKED, 1)
        else:
            yield Row("make demo, to the first game drawn", None, asked=ASKED, shown="no browser here")
