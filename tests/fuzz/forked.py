"""The ``lmrl`` command in forked processes: it imports nothing, so it can be killed at any moment of its own work."""

import array
import os
import pickle
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any, TypeVar

import torch
import torch.utils.tensorboard

from lmrl.cli import main

T = TypeVar("T")
# In place of ``python -m lmrl --tied``: a program that sends its words, folder and output to `_serve`, which forks the
# command, and that waits for the exit code.
_CLIENT = """
import array, os, socket, sys, threading
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
def end():
    while os.read(0, 1): pass
    os._exit(1)
threading.Thread(target=end, daemon=True).start()
text = "\\0".join([os.getcwd(), *sys.argv[2:]]).encode()
link.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1]))])
os._exit(int(link.recv(8) or b"1"))
"""


class Running:
    """A command that runs in a forked process."""

    def __init__(self, words: Sequence[str], pid: int, log: Path) -> None:
        self.words = words
        self._pid = pid
        self._log = log
        self._code: int | None = None

    def wait(self) -> int:
        """Wait for the end and return the exit code, which is negative for a signal."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._code

    def kill_after(self, seconds: float) -> bool:
        """Send SIGKILL after some seconds; return False if the command had ended by then."""
        end = monotonic() + seconds
        while monotonic() < end:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
                return False
            sleep(min(0.002, max(0.0, end - monotonic())))
        os.kill(self._pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL

    def output(self) -> str:
        """Return what the command has printed so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")


def start(words: Sequence[str], folder: Path, log: Path, function: Callable[[], int] | None = None) -> Running:
    """Start ``lmrl WORDS`` in a folder.

    Args:
        words: after ``lmrl``.
        folder: working directory.
        log: the file to which the output is appended.
        function: called in place of the command; returns the exit code.
    """
    with log.open("ab") as output:
        pid = os.fork()
        if pid == 0:
            _run(words, folder, output.fileno(), function)
    return Running(words, pid, log)


def in_child(work: Callable[[], T]) -> T:
    """Call a function in a forked process, so that this process gets no threads; return what the function returns.

    Raises:
        AssertionError: with the traceback of the error that it raised.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            outcome: tuple[bool, Any] = (True, work())
        except BaseException:
            outcome = (False, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(outcome, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    succeeded, result = pickle.loads(content)
    if not succeeded:
        raise AssertionError(result)
    return result  # type: ignore[no-any-return]


@contextmanager
def launcher() -> Iterator[list[str]]:
    """Yield the words of a command line that stands for ``python -m lmrl --tied``, but forks.

    A command that it starts ends when the process that started it ends.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "fork.sock"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen()
        pid = os.fork()
        if pid == 0:
            _serve(listening)
        listening.close()
        try:
            yield [sys.executable, "-S", "-E", "-c", _CLIENT, str(path)]
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve(listening: socket.socket) -> None:
    """Fork a command for each connection; kill it when the other end hangs up, and send its exit code when it ends."""
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    running: dict[socket.socket, int] = {}
    while True:
        for key, _ in waiting.select(0.005):
            if key.fileobj is listening:
                link, _ = listening.accept()
                pid = _fork_for(link)
                if pid is None:
                    link.close()
                    continue
                running[link] = pid
                waiting.register(link, selectors.EVENT_READ)
            else:  # the other end sends nothing after its first message, so it has hung up
                assert isinstance(key.fileobj, socket.socket)
                os.kill(running[key.fileobj], signal.SIGKILL)
        for link, pid in list(running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                try:
                    link.send(str(os.waitstatus_to_exitcode(status)).encode())
                except OSError:
                    pass
                waiting.unregister(link)
                link.close()
                del running[link]


def _fork_for(link: socket.socket) -> int | None:
    """Fork the command of a connection; return None if the other end was killed before it sent its words."""
    text, ancillary, _, _ = link.recvmsg(65536, socket.CMSG_LEN(4))
    if not ancillary:
        return None
    descriptors = array.array("i", ancillary[0][2])
    folder, *words = text.decode().split("\0")
    pid = os.fork()
    if pid == 0:
        _run(words, Path(folder), descriptors[0], None)
    os.close(descriptors[0])
    return pid


def _run(words: Sequence[str], folder: Path, output: int, function: Callable[[], int] | None) -> None:
    """Run the command in this process, and end the process."""
    code = 70
    try:
        for number in (1, 2):
            os.dup2(output, number)
        os.chdir(folder)
        torch.set_num_threads(1)
        sys.argv = ["lmrl", *words]
        code = main(words) if function is None else function()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
