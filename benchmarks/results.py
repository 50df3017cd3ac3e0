"""Write, read and compare the results of benchmarks: a JSON file per run, and one page for people per folder."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import slug
from benchmarks.row import Row
from lmrl.errors import UserError

__all__ = ["PAGE", "TOLERANCE", "Comparison", "compare", "is_worse", "read", "write", "write_parts"]

PAGE = "README.md"
"""The page of a folder: the tables of all its JSON files."""

TOLERANCE = 0.1
"""A figure that is worse by more than this share is a regression."""


def write(folder: Path, name: str, rows: Mapping[str, Sequence[Row]], facts: Mapping[str, Any]) -> Path:
    """Write ``<name>-<machine>.json`` over that of an earlier run, and the page of the folder.

    Args:
        folder: made if it is missing.
        name: what was run.
        rows: by benchmark.
        facts: of `benchmarks.machine.facts`.

    Returns:
        The JSON file.
    """
    records = []
    for benchmark, its_rows in rows.items():
        for row in its_rows:
            records.append({"benchmark": benchmark, **row.record()})
    path = folder / f"{name}-{slug(facts['machine'])}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"name": name, **facts, "rows": records}, indent=1) + "\n", encoding="utf-8")
    _write_page(folder)
    return path


def write_parts(
    folder: Path, name: str, rows: Mapping[str, Sequence[Row]], made: Mapping[str, Mapping[str, Any]]
) -> Path:
    """Do the same for benchmarks that do not all run at once: those of an earlier run that this one lacks stay.

    Args:
        folder: made if it is missing.
        name: of them all.
        rows: by benchmark.
        made: facts of `benchmarks.machine.facts` by benchmark, each with the packages that it had.

    Returns:
        The JSON file. Its own facts are those of the newest benchmark, and ``made`` holds those of each.
    """
    newest = [*made.values()][-1]
    path = folder / f"{name}-{slug(newest['machine'])}.json"
    old = read(path) if path.is_file() else {"rows": [], "made": {}}
    kept: dict[str, list[Row]] = {}
    for record in old["rows"]:
        fields = {key: value for key, value in record.items() if key != "benchmark"}
        kept.setdefault(record["benchmark"], []).append(Row(**fields))
    all_rows = {**kept, **rows}
    all_facts = {**old["made"], **made}
    facts = {**newest, "made": {benchmark: all_facts[benchmark] for benchmark in sorted(all_facts)}}
    return write(folder, name, {benchmark: all_rows[benchmark] for benchmark in sorted(all_rows)}, facts)


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote.

    Raises:
        UserError: for a file that is missing or of another kind.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--compare needs a JSON file of benchmarks/results, got {path}: {error}") from error
    if not isinstance(record, dict) or not {"machine", "versions", "rows"} <= record.keys():
        raise UserError(f"--compare needs a JSON file of benchmarks/results, got another kind: {path}")
    return record


def _write_page(folder: Path) -> None:
    lines = [
        "# Results of benchmarks",
        "",
        "A section per JSON file of this folder; `python -m benchmarks` writes both.",
    ]
    for path in sorted(folder.glob("*.json")):
        try:
            record = read(path)
        except UserError:
            continue  # a file of something else
        lines += ["", f"## {path.stem}", "", *_lines_of_file(record)]
    (folder / PAGE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _lines_of_file(record: Mapping[str, Any]) -> Iterator[str]:
    machine = record["machine"]
    gpu = f"{machine['gpu']}; " if "gpu" in machine else ""
    yield f"{gpu}{machine['cpu']}, {machine['cores']} cores, threads of torch: {machine['threads']}."
    yield _made_with(record)
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for row in record["rows"]:
        tables.setdefault(row["benchmark"], []).append(row)
    for benchmark, rows in tables.items():
        yield from ("", f"### {benchmark}", "")
        # A part that was measured by itself has facts of its own.
        facts = record.get("made", {}).get(benchmark)
        if facts is not None:
            yield from (_made_with(facts), "")
        yield from ("| what | measured | asked |", "|---|---|---|")
        for row in rows:
            yield f"| {row['name']} | {row['shown']} | {row['asked']} |"


def _made_with(facts: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in facts["versions"].items())
    return f"{versions}; commit {facts['commit'] or 'unknown'}, {facts['date']}, load before {facts['load']}."


class Comparison(NamedTuple):
    """The lines of a comparison with an earlier run, and the names of the figures that have become worse."""

    lines: list[str]
    regressions: list[str]


def compare(old: Mapping[str, Any], rows: Mapping[str, Sequence[Row]], machine: Mapping[str, Any]) -> Comparison:
    """Compare the rows of a run with a record of `read`, over the benchmarks that were run.

    On another machine, or with another number of threads, only ratios are compared: seconds there say nothing about
    seconds here.

    Args:
        old: the record.
        rows: by benchmark.
        machine: where they were measured.
    """
    old_rows = {}
    for record in old["rows"]:
        if record["benchmark"] in rows:
            old_rows[f"{record['benchmark']}: {record['name']}"] = record
    new_rows = {}
    for benchmark, its_rows in rows.items():
        for row in its_rows:
            new_rows[f"{benchmark}: {row.name}"] = row

    same_machine = old["machine"] == machine
    lines = [] if same_machine else ["another machine or other threads: only ratios are comparable"]
    regressions = []
    for name, row in new_rows.items():
        if name not in old_rows:
            lines.append(f"{name}: only in the new run")
            continue
        old_value = old_rows[name]["value"]
        if row.value is None or old_value is None:
            lines.append(f"{name}: not measured in both runs")
        elif same_machine or row.is_ratio:
            ratio = f"{row.value / old_value:.2f}" if old_value else "-"
            direction = f" ({row.better} is better)" if row.better else ""
            line = f"{name}: {old_rows[name]['shown']} -> {row.measured}, new / old {ratio}{direction}"
            if is_worse(old_value, row.value, row.better):
                regressions.append(name)
                line += ", REGRESSION"
            lines.append(line)
    lines += [f"{name}: only in the old run" for name in old_rows if name not in new_rows]
    return Comparison(lines, regressions)


def is_worse(old: float, new: float, better: str | None) -> bool:
    """Whether the new figure is worse by more than `TOLERANCE`; where no way is better, never."""
    loss = {"higher": old - new, "lower": new - old}.get(better or "", 0.0)
    return loss > TOLERANCE * abs(old)  # figures may be negative
