"""Results as files: JSON for `--compare` and programs, Markdown for people."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import slug
from benchmarks.row import Row
from lmrl.errors import UserError

__all__ = ["read", "write", "write_parts"]


def write(folder: Path, name: str, rows: Mapping[str, Sequence[Row]], facts: Mapping[str, Any]) -> Path:
    """Write ``<name>-<machine>.json`` and ``.md``, over those of an earlier run.

    Args:
        folder: made if it is missing.
        name: what was run.
        rows: by benchmark.
        facts: of `benchmarks.machine.facts`.

    Returns:
        The JSON file.
    """
    record = {"name": name, **facts, "rows": [{"benchmark": b, **row.record()} for b in rows for row in rows[b]]}
    path = folder / f"{name}-{slug(facts['machine'])}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(_markdown(record, rows), encoding="utf-8")
    return path


def write_parts(
    folder: Path, name: str, rows: Mapping[str, Sequence[Row]], made: Mapping[str, Mapping[str, Any]]
) -> Path:
    """As `write`, for benchmarks that are not all run at once: those of an earlier run that this one lacks stay.

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
        row = {key: value for key, value in record.items() if key != "benchmark"}
        kept.setdefault(record["benchmark"], []).append(Row(**row))
    every, parts = {**kept, **rows}, {**old["made"], **made}
    facts = {**newest, "made": {benchmark: parts[benchmark] for benchmark in sorted(parts)}}
    return write(folder, name, {benchmark: every[benchmark] for benchmark in sorted(every)}, facts)


def read(path: Path) -> dict[str, Any]:
    """What `write` wrote.

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


def _markdown(record: Mapping[str, Any], rows: Mapping[str, Sequence[Row]]) -> str:
    machine, versions = record["machine"], record["versions"]
    gpu = f"{machine['gpu']}; " if "gpu" in machine else ""
    made = ", ".join(f"{package} {number}" for package, number in versions.items())
    lines = [
        f"# Benchmarks: {record['name']}",
        "",
        f"{gpu}{machine['cpu']}, {machine['cores']} cores, threads of torch: {machine['threads']}.",
        f"{made}; commit {record['commit'] or 'unknown'}, {record['date']}, load before {record['load']}.",
    ]
    for benchmark, its in rows.items():
        lines += ["", f"## {benchmark}", "", *_made(record, benchmark), "| what | measured | asked |", "|---|---|---|"]
        lines += [f"| {row.name} | {row.measured} | {row.asked} |" for row in its]
    return "\n".join(lines) + "\n"


def _made(record: Mapping[str, Any], benchmark: str) -> list[str]:
    """With what a part was measured that has facts of its own."""
    if (facts := record.get("made", {}).get(benchmark)) is None:
        return []
    versions = ", ".join(f"{package} {number}" for package, number in facts["versions"].items())
    told = f"{versions}; commit {facts['commit'] or 'unknown'}, {facts['date']}, load before {facts['load']}."
    return [told, ""]
