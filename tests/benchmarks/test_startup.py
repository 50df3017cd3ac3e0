"""The clock of starting commands: their own CPU time, and nothing for those that failed."""

import time
from pathlib import Path

import pytest

from benchmarks import startup


def test_the_time_is_that_of_the_command(tmp_path: Path) -> None:
    began = time.monotonic()
    seconds = startup.cpu_seconds(["--version"], tmp_path)
    assert 0.01 < seconds < time.monotonic() - began + 0.5
    with pytest.raises(RuntimeError, match=r"\['trian'\] ended with 2: error: unknown command 'trian'"):
        startup.cpu_seconds(["trian"], tmp_path)
