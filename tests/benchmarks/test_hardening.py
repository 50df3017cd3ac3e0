"""Small parts of the benchmarks that damage files, send hostile requests and kill commands."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.damaged import try_files

ROOT = Path(__file__).parents[2]

# damaged: a damaged file is refused in one line that names it, or read as a whole.


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


# hostile: a served task answers whatever it is sent, and plays as before afterwards.


def test_hostile_requests_are_answered_and_nothing_crashes() -> None:
    """The first of those of ``python -m benchmarks hostile``."""
    pytest.importorskip("websockets")
    from benchmarks.hostile import is_whole, served, try_requests

    with served() as url:
        outcomes = list(try_requests(url, 300, seed=1))
        assert is_whole(url)
    assert [outcome for outcome in outcomes if outcome.what == "fault"] == []
    ways = Counter(outcome.way for outcome in outcomes)
    assert set(ways) == {"messages", "http", "frames", "bytes"}
    counted = Counter(outcome.what for outcome in outcomes)
    assert counted["refused"] > 150 and counted["answered"] > 20


# robustness: commands that are killed, and two at once in one folder.


# In a process of its own: only one without threads can be forked.
PROGRAM = """
import json, sys
from pathlib import Path
from benchmarks import robustness

work = Path(sys.argv[1])
robustness.prepare(work / "base")
found = {}
for name in ("fit ppo", "evaluate", "export"):
    case = robustness.CASES[name]
    found[f"{name} killed"] = robustness.kills(case, work / "base", work / f"kills {name}", 1, seed=1)
for name in ("fit bc",):
    case = robustness.CASES[name]
    found[f"{name} twice"] = robustness.pairs(case, work / "base", work / f"pairs {name}", 1)
print("\\n" + json.dumps(found))
"""


@pytest.mark.nightly
def test_nothing_is_lost_or_half_there(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: its["broken"] for name, its in found.items()} == {name: [] for name in found}
    assert found["fit bc twice"]["refused"] == 1
