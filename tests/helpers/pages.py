"""README and docs, and writing anew what tests make of them."""

from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def rewrite(renewed: Callable[[str], str]) -> None:
    """Write the pages that it changes, and print their names."""
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        if (after := renewed(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(path.relative_to(ROOT))
