"""``python -m benchmarks.peers [NAME...]``: run the comparisons one after the other, into one file of results.

A comparison whose other package is not installed here is left out, with the reason. The file then keeps the results
that an earlier run on this kind of machine found. `make bench-peers` runs each comparison where its package is.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import machine, results
from benchmarks.row import Row
from lmrl.errors import UserError, unknown

#: The comparisons, and the packages that must be importable for each.
NEEDS: dict[str, tuple[str, ...]] = {
    "playing": (),
    "vllm": ("openai",),
    "training": ("trl",),
    "learning": ("trl",),
    "learning_agilerl": ("agilerl",),
    "ilql": ("agilerl",),
    "statistics": ("rliable",),
    "games": ("textarena", "gem"),
    "symbolic": ("d3rlpy", "stable_baselines3"),
}
VLLM = os.environ.get("LMRL_VLLM")
RESULTS = Path(__file__).parents[1] / "results"


def missing(name: str) -> list[str]:
    """Return the packages of a comparison that are not installed here."""
    lacking = [package for package in NEEDS[name] if find_spec(package) is None]
    return lacking + (["vLLM (LMRL_VLLM names the Python that has it)"] if name == "vllm" and not VLLM else [])


def main(words: Sequence[str] | None = None) -> int:
    """Run all comparisons or those named, and replace the results that an earlier run found for them.

    Returns:
        0; 2 if a comparison is unknown, or if none can be run here.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NEEDS)}; none: all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (benchmarks/results)")
    options = parser.parse_args(words)
    try:
        made: dict[str, dict[str, Any]] = {}
        rows: dict[str, list[Row]] = {}
        for name in _wanted(options.names):
            module = import_module(f"benchmarks.peers.{name}")
            made[name] = _facts(module.PACKAGES)
            rows[name] = list(_printed(module.run()))
        if not rows:
            raise UserError("none of these comparisons can be run here")
        print(f"written: {results.write_parts(options.out, 'peers', rows, made).name} and {results.PAGE}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _wanted(names: Sequence[str]) -> list[str]:
    wanted = []
    for name in names or NEEDS:
        if name not in NEEDS:
            raise unknown("comparison", name, NEEDS)
        if lacking := missing(name):
            print(f"{name}: left out, not installed here: {', '.join(lacking)}")
        else:
            wanted.append(name)
    return wanted


def _facts(packages: Sequence[str]) -> dict[str, Any]:
    found = machine.facts()
    found["versions"] |= {package: version(package) for package in packages}
    return found


def _printed(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        print(row, flush=True)
        yield row


if __name__ == "__main__":
    sys.exit(main())
