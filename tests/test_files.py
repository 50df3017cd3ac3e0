"""Files and folders that appear complete or not at all, and one process at a time in a folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import NoReturn

import pytest

from lmrl import files
from lmrl.errors import UserError
from lmrl.files import locked, replacing, replacing_folder

WRITE_HALF_THEN = """
import os, sys
from lmrl.files import replacing, replacing_folder
from lmrl.errors import UserError
with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


def has_unnamed_files(folder: Path) -> bool:
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
    except (AttributeError, OSError):
        return False
    return os.path.isdir("/proc/self/fd")


def test_the_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.bin"
    with replacing(path) as file:
        file.write(b"all")
        assert not path.exists()
    assert path.read_bytes() == b"all"
    assert os.listdir(path.parent) == ["file.bin"]


def test_an_exception_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="stop"), replacing(path) as file:
        file.write(b"half")
        raise RuntimeError("stop")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_where_files_need_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), replacing(path) as file:
        file.write(b"half")
        assert len(os.listdir(tmp_path)) == 2
        raise RuntimeError
    assert os.listdir(tmp_path) == ["file.bin"]
    with replacing(path) as file:
        file.write(b"all")
    assert path.read_bytes() == b"all"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_an_error_of_the_system_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as told, replacing(tmp_path / "folder") as file:
        file.write(b"all")
    assert (told.value.filename, told.value.filename2) == (str(tmp_path / "folder"), None)
    assert os.listdir(tmp_path) == ["folder"]
    with pytest.raises(FileNotFoundError) as told, replacing(tmp_path / "file.bin"):
        (tmp_path / "another").open()
    assert told.value.filename == str(tmp_path / "another")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_process_leaves_the_old_file_and_no_half_one(tmp_path: Path, how: signal.Signals) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_HALF_THEN, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(how)
    assert process.returncode == -how
    assert path.read_bytes() == b"old"
    if has_unnamed_files(tmp_path):
        assert os.listdir(tmp_path) == ["file.bin"]


def fill(folder: Path, word: str) -> None:
    with replacing_folder(folder) as new:
        for name in ("one", "two"):
            (new / name).write_text(word)


def words(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.iterdir()}


@pytest.fixture(params=["exchanged", "renamed"])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that exchanges two names in a step, where there is one, and one that cannot."""
    if request.param == "renamed":
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    return str(request.param)


def test_a_folder_takes_the_place_of_another(tmp_path: Path, file_system: str) -> None:
    for word in ("first", "second"):
        fill(tmp_path / "folder", word)
        assert words(tmp_path / "folder") == {word}
    with pytest.raises(KeyError), replacing_folder(tmp_path / "folder") as new:
        (new / "one").write_text("half")
        raise KeyError
    assert words(tmp_path / "folder") == {"second"}
    assert os.listdir(tmp_path) == ["folder"]


def test_a_killed_process_leaves_one_copy_at_least(tmp_path: Path, file_system: str) -> None:
    """Killed at each of the calls that change names, one after the other; the next one cleans up."""
    fill(tmp_path / "folder", "old")
    ended = []
    while not (ended and ended[-1]):
        child = os.fork()
        if child == 0:
            _fill_and_die(tmp_path / "folder", [len(ended)])
        ended.append(os.waitpid(child, 0)[1] == 0)
        there = tmp_path / "folder"
        if file_system == "renamed" and not there.exists():
            assert words(tmp_path / ".folder.old") == {"old"}
        else:
            assert words(there) in ({"old"}, {"new"})
        with pytest.raises(KeyError), replacing_folder(there):  # the next one fails
            raise KeyError
        assert words(there) in ({"old"}, {"new"})
        fill(tmp_path / "folder", "old")
        assert words(tmp_path / "folder") == {"old"} and os.listdir(tmp_path) == ["folder"]
    assert len(ended) > 2


def _fill_and_die(folder: Path, left: list[int]) -> NoReturn:
    """Replace the folder, and die at the call that changes a name before which so many others are left."""
    sys.addaudithook(lambda event, arguments: _die(left) if event in ("os.rename", "os.rmdir") else None)
    exchange = files._exchange

    def dying(one: Path, other: Path) -> bool:
        _die(left)
        done = exchange(one, other)
        _die(left)
        return done

    files._exchange = dying
    fill(folder, "new")
    os._exit(0)


def _die(left: list[int]) -> None:
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_working_directory_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path / "folder")
    for folder in (Path("."), tmp_path):
        with pytest.raises(UserError, match="working directory"), replacing_folder(folder):
            pass


# -- locks ------------------------------------------------------------------------------------------------------------

HOLD = """
import os, sys
from lmrl.files import locked
with locked(sys.argv[1]):
    if len(sys.argv) > 2 and os.fork() == 0:
        sys.stdin.read()  # a child that outlives its parent
    print("held", flush=True)
    sys.stdin.read()
"""
ROOT = Path(__file__).parents[1]


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
