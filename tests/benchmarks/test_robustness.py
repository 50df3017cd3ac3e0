"""A small part of ``python -m benchmarks robustness``: commands that are killed, and two at once in one folder."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


@pytest.mark.slow
def test_nothing_is_lost_or_half_there(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: its["broken"] for name, its in found.items()} == {name: [] for name in found}
    assert found["fit bc twice"]["refused"] == 1
