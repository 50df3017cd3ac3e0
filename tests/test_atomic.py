import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lmrl.atomic import replacing

WRITE_HALF_THEN = """
import os, sys
from lmrl.atomic import replacing
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
