"""Compare the records with the run folders that the repository held before them: ``check_records.py REVISION``.

The old files are read from the history of the repository. Scores, settings, episodes, curves, tables, pages and
pictures must be the same; throughput (``perf/...``) is not kept. Numbers of tables may differ in the last digits,
which belong to the processor that computed the intervals.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lmrl.evaluation.records import read_data, read_record_curves, read_records
from lmrl.report.report import write_report

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results" / "cpu"
FIELDS = ("scores", "timing", "cell", "config", "curve_values", "probe", "transcript")


def as_json(value: object) -> str:
    """Return the value as JSON, in which lists and tuples are alike."""
    return json.dumps(value, default=repr)


def compare_task(old: Path, task: str) -> str:
    """Compare each record of a task, as trained and tuned, and all its curves."""
    before = read_records(old, task)
    after = read_records(RECORDS, task)
    assert before.keys() == after.keys(), task
    evaluations = 0
    for name, seeds in before.items():
        assert seeds.keys() == after[name].keys(), (task, name)
        for seed in seeds:
            first, second = seeds[seed], after[name][seed]
            while first is not None and second is not None:
                for field in FIELDS:
                    same = as_json(getattr(first, field)) == as_json(getattr(second, field))
                    assert same, (task, name, seed, field)
                for column, other in zip(first.episodes, second.episodes, strict=True):
                    assert column.tolist() == other.tolist(), (task, name, seed)
                evaluations += 1
                first, second = first.tuned, second.tuned
            assert first is None and second is None, (task, name, seed)
    curves = 0
    kept = read_record_curves(RECORDS, task)
    for name, by_seed in read_record_curves(old, task).items():
        for seed, quantities in by_seed.items():
            for quantity, curve in quantities.items():
                if not quantity.startswith("perf/"):
                    assert kept[name][seed][quantity] == curve, (task, name, seed, quantity)
                    curves += 1
    assert read_data(old, task) == read_data(RECORDS, task), task
    return f"{task}: {evaluations} evaluations and {curves} curves are the same"


def compare_report(old: Path, new: Path) -> list[str]:
    """Compare the report of the records with the one that was kept beside the old files."""
    lines = []
    for path in [*sorted(old.glob("*.png")), old / "report.md"]:
        assert path.read_bytes() == (new / path.name).read_bytes(), path.name
        lines.append(f"{path.name}: the same, byte by byte")
    before = json.loads((old / "table.json").read_text(encoding="utf-8"))
    after = json.loads((new / "table.json").read_text(encoding="utf-8"))
    numbers = flat(before)
    assert flat(after) == pytest.approx(numbers, rel=1e-12, abs=1e-12)
    lines.append(f"table.json: {len(numbers)} values are the same (numbers to 1e-12)")
    return lines


def flat(value: object, place: str = "") -> dict[str, object]:
    """Return every value inside by its place."""
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = list(enumerate(value))
    else:
        return {place: value}
    found: dict[str, object] = {}
    for name, part in parts:
        found |= flat(part, f"{place}/{name}")
    return found


def main(revision: str) -> None:
    """Compare everything; an assertion names what differs."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", revision, "results/cpu"], cwd=ROOT, check=True, capture_output=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        old = Path(folder) / "results" / "cpu"
        for path in sorted(RECORDS.glob("*.jsonl")):
            print(compare_task(old, path.stem), flush=True)
        new = Path(folder) / "report"
        write_report(RECORDS, new)
        print(*compare_report(old, new), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
