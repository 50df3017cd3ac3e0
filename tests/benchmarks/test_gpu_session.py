"""The session of jobs on a GPU: what runs, what is kept, and that the whole queue runs on the CPU."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_session, model_parts, results
from benchmarks.gpu_session import QUEUE, ROOT, read_queue
from benchmarks.row import Row

MACHINE = {"cpu": "some", "cores": 1, "threads": 1}

#: Writes a results file of two rows as `python -m benchmarks` does, and does not end by itself.
SLOW = """
import sys, time
from pathlib import Path
from benchmarks import results
from benchmarks.row import Row
out, name = Path(sys.argv[1]), sys.argv[2]
facts = {"machine": {"cpu": "some", "cores": 1, "threads": 1}, "versions": {}, "commit": None, "date": "", "load": 0}
rows = {"toy": [Row("one", 1.0), Row("two", 2.0)]}
results.write(out, name, rows, facts)
print("two rows are written", flush=True)
if "--resumed" not in sys.argv:
    time.sleep(60)
"""


def session(tmp_path: Path, jobs: str, *words: str) -> tuple[int, dict[str, dict[str, object]]]:
    """Run a queue; return the exit code and the last line of each job in the log."""
    queue = tmp_path / "queue.yaml"
    queue.write_text(jobs, encoding="utf-8")
    out = tmp_path / "out"
    code = gpu_session.main(["--device", "cpu", "--queue", str(queue), "--out", str(out), *words])
    lines = (out / "session.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return code, {record["job"]: record for record in records}


def test_the_queue_of_the_repository() -> None:
    jobs = read_queue()
    assert jobs[0].name == "checks"
    for job in jobs:
        assert job.seconds > 0
        words = set(re.findall(r"\{(\w+)\}", job.command + job.resume))
        assert words <= {"options", "model", "runs", "workers"}
        if job.done:
            assert (ROOT / job.done.rpartition(" ")[2]).is_file(), f"{job.name} names a results file that is missing"


@pytest.mark.nightly
def test_a_job_past_its_limit_is_stopped_and_its_rows_are_kept(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(SLOW, encoding="utf-8")
    command = f"python {program} {tmp_path}/out/results slow"
    jobs = f"- {{name: slow, seconds: 8, command: {command}, resume: --resumed}}\n"
    code, log = session(tmp_path, jobs)
    assert code == 1
    assert (log["slow"]["state"], log["slow"]["rows"]) == ("stopped", 2)
    assert 16 <= float(str(log["slow"]["seconds"])) < 30
    assert "two rows are written" in (tmp_path / "out" / "logs" / "slow.log").read_text(encoding="utf-8")

    assert gpu_session.keep_rows(tmp_path / "out", tmp_path / "kept") == 2, "a job that was stopped is not kept"

    code, log = session(tmp_path, jobs)
    assert (code, log["slow"]["state"]) == (0, "done"), "the next attempt has the words of resume"


def test_rows_of_all_files_of_a_job_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "out"
    names = []
    for name in ("one", "two"):
        facts = {"machine": MACHINE, "versions": {}, "commit": None, "date": "", "load": 0}
        path = results.write(out / "results", name, {"toy": [Row(name, 1.0)]}, facts)
        names.append(path.name)
    log = {"job": "both", "state": "done", "results": names}
    (out / "session.jsonl").write_text(json.dumps(log) + "\n", encoding="utf-8")
    assert gpu_session.keep_rows(out, tmp_path / "kept") == 0
    (path,) = (tmp_path / "kept").glob("session-*.json")
    assert [(row["benchmark"], row["name"]) for row in results.read(path)["rows"]] == [("both", "one"), ("both", "two")]


@pytest.mark.nightly
def test_rows_of_finished_jobs_come_into_one_file(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(SLOW, encoding="utf-8")
    for name in ("first", "second"):
        command = f"python {program} {tmp_path}/out/results {name} --resumed"
        session(tmp_path, f"- {{name: {name}, seconds: 8, command: {command}}}\n")
        assert gpu_session.keep_rows(tmp_path / "out", tmp_path / "kept") == 0
    (path,) = (tmp_path / "kept").glob("session-*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    names = [(row["benchmark"], row["name"], row["value"]) for row in record["rows"]]
    assert names == [("first", "one", 1.0), ("first", "two", 2.0), ("second", "one", 1.0), ("second", "two", 2.0)]


def test_a_job_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = "- {name: bad, seconds: 5, command: python -c 1/0}\n- {name: good, seconds: 5, command: python -c 1}\n"
    code, log = session(tmp_path, jobs)
    assert code == 1
    assert (log["bad"]["state"], log["bad"]["note"], log["good"]["state"]) == ("failed", "exit code 1", "done")
    summary = capsys.readouterr().out.rpartition("job ")[2]
    assert re.search(r"^bad +failed .*\n^good +done ", summary, re.MULTILINE)


def test_a_job_that_no_longer_fits_is_skipped(tmp_path: Path) -> None:
    jobs = "- {name: long, seconds: 500, command: python -c 1}\n- {name: short, seconds: 5, command: python -c 1}\n"
    code, log = session(tmp_path, jobs, "--seconds", "100")
    assert code == 0
    assert (log["long"]["state"], log["short"]["state"]) == ("skipped", "done")


def test_what_is_done_runs_again_only_if_it_is_named(tmp_path: Path) -> None:
    count = tmp_path / "count"
    command = f"python -c \"open('{count}', 'a').write('x')\""
    jobs = f"- name: again\n  seconds: 5\n  command: {command}\n"
    for words, times in (([], 1), ([], 1), (["again"], 2)):
        session(tmp_path, jobs, *words)
        assert len(count.read_text(encoding="utf-8")) == times
    count.unlink()
    session(tmp_path, f"{jobs}  done: 2026-01-01, a card, a file\n")
    assert not count.exists()


def test_a_job_that_needs_the_model_waits_for_it(tmp_path: Path) -> None:
    _, log = session(tmp_path, "- {name: fit, seconds: 5, command: 'python -c 1 {model}'}\n")
    assert (log["fit"]["state"], log["fit"]["note"]) == ("skipped", "needs --model")


def test_unknown_jobs_and_a_missing_gpu_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_session.main(["--device", "cpu", "--out", str(tmp_path), "no such job"]) == 2
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu_session.main(["--out", str(tmp_path)]) == 2


def test_parts_make_up_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(range(256)) * 5)
    model_parts.main(["split", str(file), "--parts", "3", "--out", str(tmp_path / "parts")])
    together = tmp_path / "together"
    together.mkdir()
    joined = tmp_path / "joined"
    words = ["join", str(together), "--out", str(joined)]
    with pytest.raises(SystemExit, match="no part has arrived"):
        model_parts.main(words)
    for number in (3, 1, 2):
        for path in (tmp_path / "parts" / str(number)).iterdir():
            (together / path.name).write_bytes(path.read_bytes())
        if number == 1:
            with pytest.raises(SystemExit, match=r"1 of 3 parts are missing in .*: model\.gguf\.2of3"):
                model_parts.main(words)
    model_parts.main(words)
    assert joined.read_bytes() == file.read_bytes()
    (together / "model.gguf.2of3").write_bytes(b"noise")
    with pytest.raises(SystemExit, match="damaged"):
        model_parts.main(words)


@pytest.mark.nightly
@pytest.mark.timeout(900)  # four minutes on two free cores
def test_the_whole_queue_runs_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON", sys.executable)
    words = ["bash", str(ROOT / "benchmarks" / "gpu_session.sh"), "--device", "cpu", "--tiny", "--out", str(tmp_path)]
    words += ["--seconds", "800"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    records = [json.loads(line) for line in (tmp_path / "session.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["job"] for record in records] == [job.name for job in read_queue(QUEUE)]
    for record in records:
        assert record["state"] == "done"
        assert record["rows"] > 0 or record["job"] == "checks"
