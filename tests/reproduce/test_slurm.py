"""Cells as jobs: by submitit's own executors for one machine, and by stand-ins for the commands of SLURM."""

import io
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from lmrl.errors import UserError
from lmrl.reproduce import Order
from lmrl.reproduce.plan import PRESETS, Cell, plan
from lmrl.reproduce.progress import Progress
from lmrl.reproduce.schedule import run_cells
from lmrl.reproduce.slurm import SlurmJobs, slurm_parameters

pytest.importorskip("submitit", reason="jobs need submitit: pip install 'lmrl[slurm]'")

ROOT = Path(__file__).parents[2]
Make = Callable[..., Order]
Trained = Callable[[], list[str]]

# A queue without limits: every task of an array begins at once, and is running as long as its process is alive.
COMMANDS = {
    "sbatch": """
        number=$(( $(ls "$FAKE_SLURM" | grep -c script) + 1 ))
        cp "$1" "$FAKE_SLURM/$number.script"
        export SLURM_JOB_ID=$number SLURM_NTASKS=1 SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0
        last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$1")
        for task in $(seq 0 ${last:-0}); do
            name=$number
            if [ -n "$last" ]; then
                export SLURM_ARRAY_JOB_ID=$number SLURM_ARRAY_TASK_ID=$task
                name=${number}_$task
            fi
            setsid bash "$1" > "$FAKE_SLURM/$name.out" 2>&1 < /dev/null &
            echo $! > "$FAKE_SLURM/$name.pid"
        done
        echo "Submitted batch job $number"
    """,
    "srun": """
        while [ "${1#--}" != "$1" ]; do case "$1" in --unbuffered) shift;; *) shift 2;; esac; done
        exec "$@"
    """,
    "sacct": """
        echo "JobID|State|NodeList"
        for file in "$FAKE_SLURM"/*.pid; do
            name=$(basename "$file" .pid)
            kill -0 $(cat "$file") 2> /dev/null && echo "$name|RUNNING|here" || echo "$name|FAILED|here"
        done
    """,
}


@pytest.fixture
def queue(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the stand-ins note what was submitted."""
    (place / "bin").mkdir()
    for name, body in COMMANDS.items():
        (place / "bin" / name).write_text(f"#!/bin/bash\n{body}")
        (place / "bin" / name).chmod(0o755)
    (place / "queue").mkdir()
    monkeypatch.setenv("FAKE_SLURM", str(place / "queue"))
    monkeypatch.setenv("PATH", f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return place / "queue"


def run_as_jobs(given: Order, shown: io.StringIO, cluster: str = "slurm", jobs: int | None = None) -> dict[str, str]:
    progress = Progress(Console(file=shown, width=200), Path("log.txt"))
    launcher = (sys.executable, "launcher.py")
    runner = SlurmJobs(given, {"time": 5, "partition": "short"}, jobs, progress.say, launcher, cluster)
    return run_cells([cell for cell in plan(given) if cell.fit], runner, progress)


@pytest.mark.nightly
@pytest.mark.parametrize("cluster", ["debug", "local"])
def test_cells_run_as_jobs_of_one_machine(
    cluster: str, place: Path, order: Make, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (place / "need-mc").write_text("bc")
    (place / "break-ilql").touch()
    failed = run_as_jobs(order("mc", "ilql"), io.StringIO(), cluster)
    assert list(failed) == ["maze_fo/ilql"] and "out of luck" in failed["maze_fo/ilql"]
    assert trained()[0] == "bc" and "mc" in trained()
    record = json.loads((place / "runs/maze_fo/mc/cell.json").read_text())
    assert record["recipe"] and record["seconds"]["total"] >= 0


def test_cells_that_train_on_a_gpu_ask_for_one(queue: Path, place: Path, order: Make) -> None:
    for preset, asked in (("cpu", None), ("gpu", 1)):
        given = replace(order("bc"), preset=PRESETS[preset])
        jobs = SlurmJobs(given, {"time": 5}, None, print, (sys.executable, "launcher.py"))
        assert jobs._executor.parameters.get("gpus_per_node") == asked
    jobs = SlurmJobs(given, {"time": 5, "gpus": 4}, None, print, (sys.executable, "launcher.py"))
    assert jobs._executor.parameters["gpus_per_node"] == 4


def test_a_job_that_slurm_has_forgotten_is_not_waited_for(queue: Path, place: Path, order: Make) -> None:
    given = order("bc")
    jobs = SlurmJobs(given, {"time": 5}, None, print, (sys.executable, "launcher.py"))
    (cell,) = [cell for cell in plan(given) if cell.fit]
    notes = given.runs / "slurm" / "jobs.json"
    notes.parent.mkdir(parents=True, exist_ok=True)
    for at, is_waited_for in ((time.time(), True), (time.time() - 3600, False)):
        notes.write_text(json.dumps({cell.name: {"job": "99", "recipe": cell.recipe, "at": at}}))
        assert (jobs._submitted(cell) is not None) is is_waited_for

    (place / "bin" / "sacct").write_text("#!/bin/bash\nexit 1\n")  # its accounting is down
    with pytest.raises(UserError, match=r"sacct does not answer, so job 99 of \S+ may still run"):
        jobs._submitted(cell)


@pytest.mark.nightly
def test_what_is_ready_together_is_an_array_after_what_it_starts_from(
    queue: Path, place: Path, order: Make, trained: Trained
) -> None:
    for name in ("filtered_bc", "mc"):
        (place / f"need-{name}").write_text("bc")
    shown = io.StringIO()
    assert run_as_jobs(order("mc", "filtered_bc"), shown, jobs=7) == {}
    assert trained()[0] == "bc" and sorted(trained()[1:]) == ["filtered_bc", "mc"]
    first, second = ((queue / f"{number}.script").read_text() for number in (1, 2))
    assert "--partition=short" in first and "--time=5" in first and "--array" not in first
    assert "#SBATCH --array=0-1%2" in second
    assert "maze_fo/mc is job 2_" in shown.getvalue()
    assert run_as_jobs(order("mc", "filtered_bc"), shown) == {} and len(trained()) == 3  # all finished before


@pytest.mark.nightly
def test_a_command_that_goes_on_waits_for_the_jobs_of_the_one_before(
    queue: Path, place: Path, order: Make, trained: Trained
) -> None:
    (place / "hold-bc").touch()

    class Releasing(io.StringIO):
        """Lets the job end when the second command has seen it."""

        def write(self, text: str) -> int:
            if "submitted before" in text:
                (place / "hold-bc").unlink(missing_ok=True)
            return super().write(text)

    cells = [cell for cell in plan(order("bc")) if cell.fit]
    said: list[str] = []
    settings: dict[str, Any] = {"launcher": (sys.executable, "launcher.py")}
    SlurmJobs(order("bc"), {"time": 5}, None, said.append, **settings).start(cells)  # and then it is killed
    shown = Releasing()
    assert run_as_jobs(order("bc"), shown) == {}
    assert "maze_fo/bc is job 1, submitted before" in shown.getvalue()
    assert trained() == ["bc"] and not (queue / "2.script").exists()


@pytest.mark.nightly
def test_a_job_of_other_settings_is_not_waited_for(queue: Path, place: Path, order: Make) -> None:
    (place / "launcher.py").write_text("import time; time.sleep(60)")
    (cell,) = [cell for cell in plan(order("bc")) if cell.fit]
    runner = SlurmJobs(order("bc"), {"time": 5}, None, print, (sys.executable, "launcher.py"))
    (job,) = runner.start([cell])
    (other,) = [cell for cell in plan(order("bc", episodes=6)) if cell.fit]
    with pytest.raises(
        UserError, match="job 1 works on maze_fo/bc with other settings: wait until it ends, or scancel 1"
    ):
        runner.start([other])
    os.killpg(int((queue / "1.pid").read_text()), 9)
    while not runner.ended([job]):
        time.sleep(0.1)
    error = job.exception()
    assert error is not None and "job 1 ended without a result" in str(error)


def test_a_job_near_the_end_of_its_time_is_queued_again_as_it_was(place: Path, order: Make, queue: Path) -> None:
    runner = SlurmJobs(order("bc"), {"time": 5}, None, print)
    submitted: list[Any] = []
    runner._executor.map_array = lambda job, *given: submitted.append((job, given)) or []
    cells: list[Cell] = []
    runner._submit(cells)
    ((job, _),) = submitted
    again = job.checkpoint("cell", "order", "launcher")
    assert again.function is job and again.args == ("cell", "order", "launcher")


def test_options_are_a_few_that_are_known() -> None:
    given = {"time": 240, "cpus": 4, "mem": 16, "gpus": 1, "partition": "gpu", "account": "lab", "qos": "low"}
    assert slurm_parameters({**given, "constraint": "a100"}) == {
        "timeout_min": 240,
        "cpus_per_task": 4,
        "mem_gb": 16,
        "gpus_per_node": 1,
        "slurm_partition": "gpu",
        "slurm_account": "lab",
        "slurm_qos": "low",
        "slurm_constraint": "a100",
    }
    for wrong, told in (
        ({}, "slurm needs the minutes"),
        ({"time": "4:00"}, "time must be a whole number of minutes from 1"),
        ({"time": 5, "mem": 0}, "mem must be a whole number of GB from 1, got 0"),
        ({"time": 5, "setup": "rm"}, "unknown option of slurm 'setup'; known: account, constraint, cpus"),
        ({"time": 5, "partition": True}, "partition must be a text"),
    ):
        with pytest.raises(UserError, match=told):
            slurm_parameters(wrong)


def test_without_slurm_it_says_so(place: Path, order: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(UserError, match="--slurm needs SLURM's commands, and sbatch, srun, sacct cannot be found"):
        SlurmJobs(order("bc"), {"time": 5}, None, print)
