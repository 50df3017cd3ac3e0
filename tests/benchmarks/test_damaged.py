"""Whatever happens to a file, it is refused in one line that names it, or read as a whole."""

from collections import Counter
from pathlib import Path

from benchmarks.damaged import try_files


def test_damaged_files_are_refused_by_name_or_read_as_a_whole(tmp_path: Path) -> None:
    """The first of each kind out of those of ``python -m benchmarks damaged``."""
    outcomes = list(try_files(tmp_path, 150, seed=0))
    assert len(outcomes) >= 150
    assert not [outcome for outcome in outcomes if outcome.what == "fault"]
    counted = Counter(outcome.what for outcome in outcomes)
    assert counted["refused"] > 100
    assert {outcome.kind.split(" (")[0] for outcome in outcomes} == {
        "parquet", "jsonl", "official", "results", "ratings", "checkpoint", "model folder",
    }  # fmt: skip
