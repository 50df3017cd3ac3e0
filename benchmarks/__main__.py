"""``python -m benchmarks [NAME...]``: the benchmarks one after the other, never two at once, as one table."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import comparison, results
from benchmarks.machine import facts
from benchmarks.row import Row
from lmrl.errors import UserError

#: What needs a GPU: together ``gpu``, and part of all where there is one.
GPU = ("gpu_training", "gpu_decoding")
#: What takes many minutes: run only where it is named.
ON_REQUEST: tuple[str, ...] = (
    "hostile",
    "illegal_moves",
    "mutations",
    "ray_workers",
    "robustness",
    "task_tokens",
    "value_base",
)
RESULTS = Path(__file__).parent / "results"


def names() -> list[str]:
    """Every module beside this one that has a ``run``."""
    found = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))
    return [name for name in found if hasattr(import_module(f"benchmarks.{name}"), "run")]


def main(words: Sequence[str] | None = None) -> int:
    """Run all benchmarks or those named, print ``name | measured | asked``, and write the results.

    Returns:
        0; 1 if something has become worse than in the file to compare with; 2 for what cannot be run.
    """
    options = _parser().parse_args(words)
    try:
        wanted = _wanted(options)
        old = None if options.compare is None else results.read(options.compare)
        made = facts(options.device if set(GPU) & set(wanted) else "cpu")
        rows = {name: list(_printed(_run(name, options))) for name in wanted}
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _print_table(rows)
    name = "-".join(options.names) + ("-tiny" if options.tiny else "") if options.names else "all"
    print(f"written: {results.write(options.out, name, rows, made).name} and .md")
    if old is None:
        return 0
    found = comparison.compare(old, rows, made["machine"])
    print(*found.lines, sep="\n")
    print(f"{len(found.regressions)} regressions (worse by more than {comparison.TOLERANCE:.0%})")
    return int(bool(found.regressions))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"gpu, {', '.join(names())}; none: all{''.join(f', but {name}' for name in ON_REQUEST)}",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (benchmarks/results)")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="JSON of an earlier run; 1 if this one is worse")
    parser.add_argument("--device", default="cuda", help="of gpu")
    parser.add_argument("--tiny", action="store_true", help="gpu at a size at which it only runs")
    return parser


def _wanted(options: argparse.Namespace) -> list[str]:
    wanted = [name for word in options.names for name in (GPU if word == "gpu" else (word,))]
    if strange := sorted(set(wanted) - set(names())):
        raise UserError(f"unknown benchmark {', '.join(strange)}; known: gpu, {', '.join(names())}")
    here = torch.cuda.is_available()
    if set(GPU) & set(wanted) and not here and torch.device(options.device).type == "cuda":
        raise UserError("gpu needs a GPU; --device cpu --tiny shows that it runs")
    if not (wanted or here):
        print("gpu: left out, since there is no GPU here")
    return wanted or [name for name in names() if name not in ON_REQUEST and (name not in GPU or here)]


def _run(name: str, options: argparse.Namespace) -> Iterator[Row]:
    settings = {"device": options.device, "tiny": options.tiny} if name in GPU else {}
    rows: Iterator[Row] = import_module(f"benchmarks.{name}").run(**settings)
    return rows


def _printed(rows: Iterator[Row]) -> Iterator[Row]:
    for row in rows:
        print(row, flush=True)
        yield row


def _print_table(rows: dict[str, list[Row]]) -> None:
    table = Table("benchmark", "measured", "asked")
    for row in (row for its in rows.values() for row in its):
        table.add_row(row.name, row.measured, row.asked)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
