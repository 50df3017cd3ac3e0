"""``python -m benchmarks [NAME...]``: the benchmarks one after the other, never two at once, as one table."""

import sys
from importlib import import_module
from pathlib import Path

from rich.console import Console
from rich.table import Table


def names() -> list[str]:
    """Every module beside this one that has a ``run``."""
    found = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    return [name for name in found if hasattr(import_module(f"benchmarks.{name}"), "run")]


def main(wanted: list[str]) -> int:
    """Print ``name | measured | asked`` for all benchmarks or those named; ``run()`` yields such triples."""
    if strange := sorted(set(wanted) - set(names())):
        print(f"error: unknown benchmark {', '.join(strange)}; known: {', '.join(names())}", file=sys.stderr)
        return 2
    table = Table("benchmark", "measured", "asked")
    for name in wanted or names():
        for row in import_module(f"benchmarks.{name}").run():
            table.add_row(*map(str, row))
            print(*row, sep=" | ", flush=True)
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
