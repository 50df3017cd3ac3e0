"""One process at a time, and a lock that goes with its holder."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

from lmrl.errors import UserError
from lmrl.files import locked

HOLD = """
import os, sys
from lmrl.files import locked
with locked(sys.argv[1]):
    if len(sys.argv) > 2 and os.fork() == 0:
        sys.stdin.read()  # a child that outlives its parent
    print("held", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).parents[2]


def holder(folder: Path, *more: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    return process


def test_the_second_is_told_who_holds_it(tmp_path: Path) -> None:
    with holder(tmp_path / "run") as other:
        with pytest.raises(UserError) as told, locked(tmp_path / "run", "run folder"):
            pass
        said = str(told.value)
        assert f"run folder {tmp_path / 'run'} is in use by process {other.pid} on " in said
        assert " since 20" in said and f"(-c {tmp_path / 'run'})" in said and "\n" not in said
        with locked(tmp_path / "another"):
            pass
        other.communicate(b"")
    with locked(tmp_path / "run"):
        assert [path.name for path in tmp_path.iterdir()] == [".run.lock"]
    assert not list(tmp_path.iterdir())


def test_a_killed_holder_holds_nothing_though_a_child_of_it_lives(tmp_path: Path) -> None:
    with holder(tmp_path / "run", "fork") as other:
        other.send_signal(signal.SIGKILL)
        other.wait(20)
        with locked(tmp_path / "run", wait=5.0):  # on a busy machine the child may not have let go of the file yet
            pass
        assert other.stdin is not None
        other.stdin.close()


def test_one_process_does_not_hold_it_twice(tmp_path: Path) -> None:
    with locked(tmp_path / "run"), pytest.raises(UserError, match=f"process {os.getpid()} "), locked(tmp_path / "run"):
        pass


def test_waiting_for_one_that_ends(tmp_path: Path) -> None:
    with holder(tmp_path / "run") as other:
        ending = Timer(0.1, other.kill)
        ending.start()
        with locked(tmp_path / "run", wait=20.0):
            assert other.wait(20) == -signal.SIGKILL


def test_no_key_is_in_the_note_of_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "evaluate maze_fo --policy chat:m --chat api_key=sk-hunter2 base_url=http://me:hunter2@host/v1 retries=1"
    monkeypatch.setattr(sys, "argv", ["/bin/lmrl", *words.split(), "--logger.api_key", "hunter2", "--seed", "3"])
    with locked(tmp_path / "run"):
        file = tmp_path / ".run.lock"
        assert file.stat().st_mode & 0o777 == 0o600
        with pytest.raises(UserError, match="in use by") as error, locked(tmp_path / "run"):
            pass
        for text in (file.read_text(encoding="utf-8"), str(error.value)):
            assert "hunter2" not in text
            assert "api_key=... base_url=http://...@host/v1 retries=1 --logger.api_key ... --seed 3" in text
