"""Processes that run the commands of cells and trials, with a log and the time of each."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Lock, current_thread, main_thread
from time import monotonic, time
from typing import Any, NoReturn

from lmrl.errors import without_secrets
from lmrl.evaluation.result_json import read_json, write_json
from lmrl.reproduce.plan import Step
from lmrl.utils.cluster import available_cores
from lmrl.utils.threads import SHARE

__all__ = ["LMRL", "CommandFailed", "Processes"]

LMRL = (sys.executable, "-m", "lmrl", "--tied")
"""The command in front of the arguments of a step."""
_TAIL_LINES = 15


class CommandFailed(Exception):
    """A command ended with another exit code than 0; the text is the end of its log."""


class Processes:
    """Runs steps; several threads may use it. At the end of the ``with`` block it terminates what still runs.

    Args:
        jobs: number of commands that run in parallel; each gets the same number of threads, at least one.
        launcher: the command in front of the arguments of a step.
        threads: number of threads of each command; None: its share of the cores.
    """

    def __init__(self, jobs: int, launcher: Sequence[str] = LMRL, threads: int | None = None) -> None:
        self.threads = max(1, available_cores() // jobs) if threads is None else threads
        self._launcher = tuple(launcher)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._closed = False
        self._before: Any = None

    def __enter__(self) -> "Processes":
        # Without a handler SIGTERM would end this process at once, and the trainings would run on alone.
        if current_thread() is main_thread():
            self._before = signal.signal(signal.SIGTERM, _interrupted)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
        with self._lock:
            self._closed = True
            for process in self._running:
                process.terminate()

    def run(self, step: Step, folder: Path, *more: str) -> None:
        """Run a step, append its output to ``log.txt``, and note command, recipe and seconds in ``timing.json``.

        Args:
            step: the step.
            folder: folder of the cell.
            more: further arguments, which are no part of the recipe.

        Raises:
            CommandFailed: with the last lines of its output.
        """
        folder.mkdir(parents=True, exist_ok=True)
        command = shlex.join(("lmrl", *without_secrets(step.words)))
        started = monotonic()
        seconds, cpu_seconds = _spent_before(folder, step)
        record = {"command": command, "threads": self.threads, "recipe": step.recipe}
        before = _times("before", "cpu_before", seconds, cpu_seconds)
        # Noted before it begins. If it is killed, `seconds` is missing, and the recipe tells whether to resume it.
        _note(folder, step, {**record, **before, "began": time()})
        with (folder / "log.txt").open("ab") as log:
            log.write(f"$ {command}\n".encode())
            log.flush()
            begin = log.tell()
            code, cpu = self._call((*step.words, *more), log.fileno())
        seconds += monotonic() - started
        cpu_seconds = None if cpu is None or cpu_seconds is None else cpu_seconds + cpu
        if code != 0:
            _note(folder, step, {**record, **_times("before", "cpu_before", seconds, cpu_seconds)})
            raise CommandFailed(f"{command}\nended with exit code {code}:\n{_tail(folder / 'log.txt', begin)}")
        _note(folder, step, {**record, **before, **_times("seconds", "cpu_seconds", seconds, cpu_seconds)})

    def _call(self, words: Sequence[str], output: int) -> tuple[int, float | None]:
        """Return the exit code and, where it is known, the CPU seconds, which do not depend on other processes."""
        threads = str(self.threads)
        # Torch reads OMP_NUM_THREADS. Logs are files: without colours, and written at once instead of by full buffers.
        variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, SHARE: threads}
        variables |= {"PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
        with self._lock:
            if self._closed:
                raise CommandFailed("not started: interrupted")
            process = subprocess.Popen(
                [*self._launcher, *words],
                stdin=subprocess.PIPE,  # closes when this process ends, which ends the command (`lmrl.__main__`)
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **variables},
            )
            self._running.add(process)
        try:
            return _wait(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            with self._lock:
                self._running.discard(process)


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, float | None]:
    if sys.platform == "win32":
        return process.wait(), None
    try:
        _, status, used = os.wait4(process.pid, 0)
    except ChildProcessError:  # `terminate` has collected its exit code already
        return process.wait(), None
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def _note(folder: Path, step: Step, record: dict[str, Any]) -> None:
    write_json({**read_json(folder / "timing.json"), step.name: record}, folder / "timing.json")


def _times(name: str, cpu_name: str, seconds: float, cpu_seconds: float | None) -> dict[str, float]:
    """Return the entries of a time. CPU seconds that are not known have none."""
    times = {name: round(seconds, 1)}
    if cpu_seconds is not None:
        times[cpu_name] = round(cpu_seconds, 1)
    return times


def _spent_before(folder: Path, step: Step) -> tuple[float, float | None]:
    """Return the seconds and CPU seconds of earlier attempts at this step.

    Where this process was killed together with the attempt, the attempt lasted until the last write to its log, and its
    CPU seconds are not known.
    """
    record = read_json(folder / "timing.json").get(step.name, {})
    log = folder / "log.txt"
    unfinished = record.get("recipe") == step.recipe and "before" in record and "seconds" not in record
    if not unfinished or not log.is_file():
        return 0.0, 0.0
    before = float(record["before"])
    if "began" in record:
        return before + max(0.0, log.stat().st_mtime - float(record["began"])), None
    return before, record.get("cpu_before")


def _interrupted(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _tail(path: Path, begin: int) -> str:
    """Return the last lines of a log, of what was written from byte ``begin`` on."""
    with path.open("rb") as log:
        log.seek(max(begin, path.stat().st_size - 20_000))
        text = log.read().decode(errors="replace")
    shown = []
    for line in text.split("\n"):
        # A progress bar rewrites its line with carriage returns; only what it showed last counts.
        last = line.rstrip("\r").rpartition("\r")[2]
        if last.strip():
            shown.append(last)
    return "\n".join(shown[-_TAIL_LINES:])
