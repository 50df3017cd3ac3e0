"""Files and folders that appear complete or not at all, and one process at a time in a folder."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any, NoReturn

import pytest
import torch

from lmrl.cli import main
from lmrl.errors import UserError
from lmrl.utils.files import locked, replacing, replacing_folder

WRITE_HALF_THEN = """
import os, sys
from lmrl.utils.files import replacing, replacing_folder
from lmrl.errors import UserError
with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    print("written", flush=True)
    sys.stdin.read()
"""


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
    with replacing(path) as file:  # what the killed process left is not in the way
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_two_writers_do_not_mix_their_output(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    with replacing(path) as one, replacing(path) as other:
        one.write(b"one")
        other.write(b"other")
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["file.bin"]


def fill(folder: Path, word: str) -> None:
    with replacing_folder(folder) as new:
        for name in ("one", "two"):
            (new / name).write_text(word)


def words(folder: Path) -> set[str]:
    return {path.read_text() for path in folder.iterdir()}


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    for word in ("first", "second"):
        fill(tmp_path / "folder", word)
        assert words(tmp_path / "folder") == {word}
    with pytest.raises(KeyError), replacing_folder(tmp_path / "folder") as new:
        (new / "one").write_text("half")
        raise KeyError
    assert words(tmp_path / "folder") == {"second"}
    assert os.listdir(tmp_path) == ["folder"]


def test_a_killed_process_leaves_one_copy_at_least(tmp_path: Path) -> None:
    """The process is killed at each call that changes names, one after the other; the next process cleans up."""
    fill(tmp_path / "folder", "old")
    ended = []
    while not (ended and ended[-1]):
        child = os.fork()
        if child == 0:
            _fill_and_die(tmp_path / "folder", [len(ended)])
        ended.append(os.waitpid(child, 0)[1] == 0)
        there = tmp_path / "folder"
        if not there.exists():
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
    """Replace the folder, and die at a call that changes a name, after `left[0]` such calls."""
    sys.addaudithook(lambda event, arguments: _die(left) if event in ("os.rename", "os.rmdir") else None)
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
from lmrl.utils.files import locked
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


# -- commands that are killed ---------------------------------------------------------------------------------------

# How often each command below is killed.
KILLS = int(os.environ.get("LMRL_KILLS", "3"))
CHANGES = ("open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir")
WRITING = os.O_WRONLY | os.O_RDWR


def changes_until_death(words: list[str], folder: Path, at: int | None) -> int | None:
    """Run a command in a process that is killed before its ``at``-th change under a folder.

    Returns:
        The number of changes; None if it was killed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _count_and_die(words, folder, at, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    status = os.waitpid(child, 0)[1]
    if at is None:
        assert status == 0 and told, status
        return int(told)
    assert status == signal.SIGKILL, status
    return None


def _count_and_die(words: list[str], folder: Path, at: int | None, pipe: int) -> NoReturn:
    done = 0

    def note() -> None:
        nonlocal done
        done += 1
        if done == at:
            os.kill(os.getpid(), signal.SIGKILL)

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES or (event == "open" and not arguments[2] & WRITING):
            return
        paths = [path for path in arguments if isinstance(path, str)]
        # `shutil.rmtree` names what it deletes from within the folder.
        within = event in ("os.remove", "os.rmdir") and arguments[1] != -1
        if within or any(os.path.abspath(path).startswith(str(folder)) for path in paths):
            note()

    def synchronize(file: int, fsync: Callable[[int], None] = os.fsync) -> None:
        note()
        fsync(file)

    # A forked process has none of the threads of torch, and would wait for them forever.
    torch.set_num_threads(1)
    sys.addaudithook(look)
    os.fsync = synchronize
    code = 1
    try:
        code = main(words)
        os.write(pipe, str(done).encode())
    finally:
        os._exit(code)


def moments(changes: int) -> list[int]:
    """Return numbers of changes, spread over all of them."""
    return sorted({1 + int((changes - 1) * (2 * index + 1) / (2 * KILLS)) for index in range(KILLS)})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_killed(place: Path, words: str, target: Path, check: Callable[[Any, Any], None]) -> None:
    """Kill a command at several moments, and let it end after the last of them.

    Args:
        place: working directory, with what is there before; only files in it count.
        words: the words of the command.
        target: what it replaces, in ``place``.
        check: gets the contents of the target before and after the command, and looks at those that are there.
    """
    before = shutil.copytree(place, place.with_name("before"))
    old = contents(target)
    changes = changes_until_death(words.split(), place, None)
    assert changes is not None and changes >= KILLS
    new = contents(target)
    assert new != old
    everything = {path for path in contents(place) if not path.endswith((".lock", ".tmp"))}
    for at in moments(changes):
        shutil.rmtree(place)
        shutil.copytree(before, place)
        os.chdir(place)
        changes_until_death(words.split(), place, at)
        check(old, new)
    # Files that the last killed command has left are not in the way.
    if not old:  # such a command does not start again if the last one was killed after its work
        shutil.rmtree(target, ignore_errors=True)
    changes_until_death(words.split(), place, None)
    check(new, new)
    assert {path for path in contents(place) if not path.endswith((".lock", ".tmp"))} == everything


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path / "place")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # a killed process leaves its temporary folder
    return tmp_path / "place"


def check_one_of(target: Path) -> Callable[[Any, Any], None]:
    """Return a check that the folder is the old or the new one; between two renames the old one has another name."""

    def check(old: dict[str, bytes], new: dict[str, bytes]) -> None:
        moved = target.with_name(f".{target.name}.old")
        assert contents(target if target.exists() else moved) in (old, new)

    return check


def test_a_killed_evaluation_leaves_the_old_or_the_new_one(place: Path) -> None:
    words = "evaluate maze_fo --policy random --out out --episodes"
    assert main([*words.split(), "2"]) == 0
    check_killed(place, f"{words} 3", place / "out", check_one_of(place / "out"))


@pytest.mark.slow
def test_a_killed_zoo_add_leaves_the_old_or_the_new_policy(place: Path, bc_run: str) -> None:
    shutil.copytree(bc_run, place / "maze_fo/bc")
    words = "zoo add maze_fo/bc --to zoo --episodes"
    assert main([*words.split(), "2"]) == 0
    target = place / "zoo/maze_fo/bc"
    check_killed(place, f"{words} 3", target, check_one_of(target))


def test_a_killed_export_to_minari_leaves_no_dataset_or_a_whole_one(
    place: Path, data_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari: Any = pytest.importorskip("minari", reason="needs Minari: pip install 'lmrl[minari]'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", "minari")
    target = place / "minari/lmrl/maze/beh-v0"

    def check(old: dict[str, bytes], new: dict[str, bytes]) -> None:
        if not target.exists():
            return
        assert contents(target).keys() == new.keys()
        assert minari.load_dataset("lmrl/maze/beh-v0").total_episodes == 30

    words = f"data export {data_path} --minari lmrl/maze/beh-v0"
    check_killed(place, words, target, check)


@pytest.mark.nightly
def test_a_killed_report_names_no_picture_that_is_missing(place: Path, run_of: Any, player: Any) -> None:
    """The earlier report has pictures that the new one lacks."""
    bc = player(lambda request: "move down\n")
    page = place / "page"
    run_of(place / "table", "bc", bc, episodes=3, metrics="step,train/loss\n1,2.0\n2,1.0\n")
    assert main(["report", "--runs", "table", "--out", "page"]) == 0
    (page / "thesis.txt").write_text("three years of work")
    (place / "table/maze_fo/bc/metrics.csv").unlink()

    def check(old: dict[str, bytes], new: dict[str, bytes]) -> None:
        there = contents(page)
        assert (page / "thesis.txt").read_text() == "three years of work"
        text = there["report.md"].decode()
        shown = re.findall(r"\]\(([\w.]+\.png)\)", text)
        assert shown and set(shown) <= there.keys()
        assert there["report.md"] in (old["report.md"], new["report.md"])
        assert there["report.html"] in (old["report.html"], new["report.html"])

    check_killed(place, "report --runs table --out page", page, check)
