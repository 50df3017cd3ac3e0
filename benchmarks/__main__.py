"""``python -m benchmarks [NAME...]``: the benchmarks one after the other, never two at once, as one table."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import results, size
from benchmarks.machine import facts
from benchmarks.row import Row
from lmrl.errors import UserError

#: `training` and `decoding` at the size of a GPU: the module, the size, and the size of ``--tiny``.
AT_GPU_SIZE = {
    "gpu_training": ("training", size.GPU, size.TINY),
    "gpu_training_llama": ("training", size.GPU_LLAMA, size.TINY_LLAMA),
    "gpu_decoding": ("decoding", size.GPU, size.TINY),
}
#: What needs a GPU: together ``gpu``, and part of all where there is one.
GPU = ("gpu_training", "gpu_decoding")
#: Benchmarks that take a device.
ON_DEVICE = (*AT_GPU_SIZE, "gpu_commands")
#: What takes many minutes or needs files: run only where it is named.
ON_REQUEST: tuple[str, ...] = (
    "chat_model",
    "chat_play",
    "chat_templates",
    "gpu_commands",
    "gpu_training_llama",
    "ill_runs",
    "illegal_moves",
    "mutations",
    "overlap",
    "ray_workers",
    "real_model",
    "task_tokens",
    "value_base",
)
RESULTS = Path(__file__).parent / "results"


def names() -> list[str]:
    """Return the names of all benchmarks: every module of this folder that has a ``run``, and those at GPU size."""
    found = list(AT_GPU_SIZE)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        # The text is looked at, since importing all modules takes seconds.
        if not path.stem.startswith("_") and "\ndef run(" in path.read_text(encoding="utf-8"):
            found.append(path.stem)
    return sorted(found)


def main(words: Sequence[str] | None = None) -> int:
    """Run all benchmarks or those named, print ``name | measured | asked``, and write the results.

    Returns:
        0; 1 if something has become worse than in the file to compare with; 2 for what cannot be run.
    """
    options = _parser().parse_args(words)
    try:
        wanted = _wanted(options)
        old = None if options.compare is None else results.read(options.compare)
        made = facts(options.device if set(ON_DEVICE) & set(wanted) else "cpu")
        rows: dict[str, list[Row]] = {}
        for benchmark in wanted:
            rows[benchmark] = []
            for row in _run(benchmark, options):
                print(row, flush=True)
                rows[benchmark].append(row)
                results.write(options.out, _file_name(options), rows, made)  # what is measured stays, if the rest fails
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _print_table(rows)
    print(f"written: {results.write(options.out, _file_name(options), rows, made).name} and {results.PAGE}")
    if old is None:
        return 0
    comparison = results.compare(old, rows, made["machine"])
    print(*comparison.lines, sep="\n")
    print(f"{len(comparison.regressions)} regressions (worse by more than {results.TOLERANCE:.0%})")
    return int(bool(comparison.regressions))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"gpu, {', '.join(names())}; none: all except {', '.join(ON_REQUEST)}",
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (benchmarks/results)")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="JSON of an earlier run; 1 if this one is worse")
    parser.add_argument("--name", help="of the results' files (default: the names of what is run)")
    parser.add_argument("--device", default="cuda", help="of gpu")
    parser.add_argument("--tiny", action="store_true", help="gpu at a size at which it only runs")
    parser.add_argument("--only", nargs="+", default=[], metavar="PART", help="of one gpu benchmark: these parts of it")
    parser.add_argument("--model", type=Path, help="of gpu_commands: folder of the language model")
    parser.add_argument("--folder", type=Path, help="of chat_templates: folder of the templates, *.jinja files")
    parser.add_argument("--runs", type=Path, default=Path("runs/gpu"), help="of gpu_commands: folder of its runs")
    return parser


def _file_name(options: argparse.Namespace) -> str:
    """Return the first part of the results' file names."""
    if options.name:
        return str(options.name)
    if not options.names:
        return "all"
    return "-".join(options.names) + ("-tiny" if options.tiny else "")


def _wanted(options: argparse.Namespace) -> list[str]:
    wanted = [name for word in options.names for name in (GPU if word == "gpu" else (word,))]
    if strange := sorted(set(wanted) - set(names())):
        raise UserError(f"unknown benchmark {', '.join(strange)}; known: gpu, {', '.join(names())}")
    here = torch.cuda.is_available()
    if set(ON_DEVICE) & set(wanted) and not here and torch.device(options.device).type == "cuda":
        raise UserError("gpu needs a GPU; --device cpu --tiny shows that it runs")
    if not (wanted or here):
        print("gpu: left out, since there is no GPU here")
    return wanted or [name for name in names() if name not in ON_REQUEST and (name not in GPU or here)]


def _run(name: str, options: argparse.Namespace) -> Iterator[Row]:
    rows: Iterator[Row]
    if name in AT_GPU_SIZE:
        module, full, tiny = AT_GPU_SIZE[name]
        chosen = replace(tiny if options.tiny else full, device=options.device)
        rows = import_module(f"benchmarks.{module}").run(chosen, options.only)
        return rows
    settings: dict[str, Any] = {}
    if name == "gpu_commands":
        settings = {"device": options.device, "tiny": options.tiny, "only": options.only}
        settings |= {"model": options.model, "runs": options.runs}
    if name == "chat_templates":
        settings = {"folder": options.folder}
    rows = import_module(f"benchmarks.{name}").run(**settings)
    return rows


def _print_table(rows: dict[str, list[Row]]) -> None:
    table = Table("benchmark", "measured", "asked")
    for row in (row for its in rows.values() for row in its):
        table.add_row(row.name, row.measured, row.asked)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
