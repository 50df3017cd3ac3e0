"""The real command, killed in mid-training and started again."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
STEPS = 120
SAVING = '[{"class_path": "lmrl.callbacks.KeepLast", "init_args": {"every_n_steps": 10}}]'
COMMAND = [
    *(sys.executable, "-m", "lmrl", "reproduce", "maze_fo", "--preset", "cpu", "--seeds", "1", "--smoke"),
    *("--algorithms", "bc", "--overrides", f"trainer.max_steps={STEPS}", f"trainer.callbacks={SAVING}"),
]


@pytest.mark.nightly
def test_a_killed_table_goes_on_without_repeating_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("LMRL_DATA", str(tmp_path / "data"))
    run = tmp_path / "runs/smoke/maze_fo/bc"
    with subprocess.Popen(COMMAND, cwd=tmp_path, stdout=subprocess.DEVNULL) as parent:
        while parent.poll() is None and not (run / "last.ckpt").is_file():
            time.sleep(0.01)
        parent.send_signal(signal.SIGKILL)
        assert parent.wait(20) == -signal.SIGKILL
    _wait_until_quiet(run / "metrics.csv")
    reached = torch.load(run / "last.ckpt", weights_only=True)["global_step"]
    assert 0 < reached < STEPS and not (run / "cell.json").exists()
    finished = {path: path.stat().st_mtime_ns for path in run.parent.glob("*/cell.json")}
    assert "data" in {path.parent.name for path in finished}

    again = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert f"5 cells, {len(finished)} of them finished before" in again.stdout
    assert f"training resumes from last.ckpt, {STEPS} steps in all" in again.stdout
    assert finished == {path: path.stat().st_mtime_ns for path in finished}
    whole = torch.load(run / "last.ckpt", weights_only=True)
    assert whole["global_step"] == STEPS
    cell = json.loads((run / "cell.json").read_text())
    assert cell["steps"] == {"last": STEPS} and cell["tokens"]["trained"] == whole["lmrl"]["action_tokens"] > 0
    assert cell["tokens"]["played"] > 0
    # Of all the attempts together; the log has two of the training and one of each evaluation.
    assert len(re.findall(r"^\$ lmrl fit ", (run / "log.txt").read_text(), re.MULTILINE)) == 2
    assert len(re.findall(r"^\$ lmrl evaluate ", (run / "log.txt").read_text(), re.MULTILINE)) == 2
    assert (tmp_path / "report/smoke/table.csv").is_file()


def _wait_until_quiet(path: Path) -> None:
    """The training ends with the command that started it; its last write may come a moment later."""
    size = -1
    while path.is_file() and path.stat().st_size != size:
        size = path.stat().st_size
        time.sleep(1.0)
