import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lmrl.reproduce import Order
from lmrl.reproduce.plan import is_done, plan
from lmrl.reproduce.processes import CommandFailed, Processes

ROOT = Path(__file__).parents[2]


def test_threads_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmrl.reproduce.processes.available_cores", lambda: 8)
    assert [Processes(jobs).threads for jobs in (1, 3, 8, 20)] == [8, 2, 1, 1]


def test_leaving_the_block_ends_what_runs(place: Path, order: Callable[..., Order]) -> None:
    cell = plan(order("bc"))[-1]
    assert cell.fit is not None
    script = "import time; print('up', flush=True); time.sleep(60)"
    with Processes(1, (sys.executable, "-c", script)) as processes:
        failures: list[BaseException] = []

        def work() -> None:
            assert cell.fit is not None
            try:
                processes.run(cell.fit, cell.folder)
            except CommandFailed as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        while not (cell.folder / "log.txt").is_file() or "up" not in (cell.folder / "log.txt").read_text():
            thread.join(0.01)
    thread.join(10)
    assert not thread.is_alive() and len(failures) == 1
    assert not is_done(cell, cell.fit)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for the process in /proc")
@pytest.mark.nightly
def test_a_terminated_reproduction_leaves_no_training_behind(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (place / "sleeper.py").write_text("import os, time; print('pid', os.getpid(), flush=True); time.sleep(60)")
    code = "import sys; from pathlib import Path; from lmrl.reproduce import Order, reproduce; "
    code += "reproduce(Order(['maze_fo'], ['bc'], Path('runs')), launcher=[sys.executable, 'sleeper.py'])"
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", code], **silent) as parent:
        log = place / "runs/maze_fo/data/log.txt"
        while parent.poll() is None and not (log.is_file() and re.search(r"pid (\d+)\n", log.read_text())):
            time.sleep(0.02)
        parent.terminate()
        assert parent.wait(20) != 0
    child = int(re.findall(r"pid (\d+)", log.read_text())[0])
    for _ in range(200):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.02)
    pytest.fail("the training outlived its reproduction")


@pytest.mark.slow
def test_a_tied_command_ends_with_the_other_end_of_its_input(tmp_path: Path) -> None:
    words = ["data", "generate", "maze_fo", "--size", "900000", "--out", str(tmp_path / "endless.parquet")]
    command = [sys.executable, "-m", "lmrl", "--tied", *words]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 1
