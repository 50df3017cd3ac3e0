"""Pages in a headless Chromium, as the system has it, and the contrast of their colours."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def opened(**settings: Any) -> Iterator[Any]:
    """Yield an empty tab (a ``playwright.sync_api.Page``); skip the test if there is no Chromium.

    The test fails if the page throws, logs an error, or requests something from another machine.

    Args:
        settings: settings of the browser's context, such as ``viewport`` and ``color_scheme``.
    """
    if BROWSER is None:
        pytest.skip("no Chromium is installed")
    driver = pytest.importorskip("playwright.sync_api")
    wrong: list[str] = []
    # One browser for each test: its event loop must not be there when the next test starts one of its own.
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_context(**{"viewport": {"width": 1200, "height": 800}, **settings}).new_page()
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda message: wrong.append(message.text) if _is_error(message) else None)
        tab.on("request", lambda request: None if _own(request.url) else wrong.append(request.url))
        yield tab
        browser.close()
    assert not wrong, wrong


def in_browser(page: Path, script: str) -> Any:
    """Run the body of an async function in a page from a file, which must be accessible, and return its result."""
    with opened() as tab:
        tab.goto(page.as_uri())
        assert accessibility_faults(tab) == []
        return run_script(tab, script)


def run_script(tab: Any, script: str) -> Any:
    """Run the body of an async function, which can call ``text(id)``, and return its result."""
    text = "const text = (id) => document.getElementById(id).textContent;"
    return tab.evaluate(f"async () => {{ {text} {script} }}")


def accessibility_faults(tab: Any) -> list[str]:
    """Return the faults that axe finds in the page as it now is, by WCAG 2.1 A and AA and axe's best practice."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    found = axe.run(tab, options={"runOnly": rules}).response["violations"]
    return [f"{rule['id']}: {rule['help']}: {node['html'][:200]}" for rule in found for node in rule["nodes"]]


def _is_error(message: Any) -> bool:
    """Return whether a message is an error. The test itself checks what a server refuses, so that does not count."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


def _own(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:"))


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours ``#rgb`` or ``#rrggbb`` as WCAG 2 defines it."""
    shades = []
    for code in (one.lstrip("#"), other.lstrip("#")):
        wide = code if len(code) == 6 else "".join(2 * digit for digit in code)
        parts = [int(wide[place : place + 2], 16) / 255 for place in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        shades.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(shades) + 0.05) / (min(shades) + 0.05)
