"""The ``lmrl`` command in forked processes: imports are paid once, and a run can be killed at any moment of its own."""

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
from time import monotonic, sleep
from typing import Any, TypeVar

import torch
import torch.utils.tensorboard

from lmrl.cli import main

__all__ = ["Running", "in_child", "launcher", "start"]

T = TypeVar("T")
# Stands for ``python -m lmrl --tied``: hands its words, folder and output to a process that forks, and waits with it.
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
    """A command under way in a forked process."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid, self.log, self.code = pid, log, None

    code: int | None
    """Exit code, negative for a signal; None while it runs."""

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def kill_after(self, seconds: float) -> bool:
        """SIGKILL it so long after now; False if it had ended by then."""
        end = monotonic() + seconds
        while monotonic() < end:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.code = os.waitstatus_to_exitcode(status)
                return False
            sleep(min(0.002, max(0.0, end - monotonic())))
        os.kill(self.pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL

    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


def start(words: Sequence[str], folder: Path, log: Path, act: Callable[[], int] | None = None) -> Running:
    """Start ``lmrl WORDS`` in a folder.

    Args:
        words: after ``lmrl``.
        folder: working directory.
        log: its output, appended.
        act: called in place of the command.
    """
    with log.open("ab") as output:
        pid = os.fork()
        if pid == 0:
            _be(words, folder, output.fileno(), act)
    return Running(pid, log)


def in_child(work: Callable[[], T]) -> T:
    """What `work` returns or raises in a forked process: its threads and open files are not those of the next fork."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            found: tuple[bool, Any] = (True, work())
        except BaseException:
            found = (False, traceback.format_exc())
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(found, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    done, result = pickle.loads(content)
    if not done:
        raise AssertionError(result)
    return result  # type: ignore[no-any-return]


@contextmanager
def launcher(folder: Path) -> Iterator[list[str]]:
    """Words that start a command in a forked process; like ``python -m lmrl --tied`` it ends with its starter."""
    path = folder / "fork.sock"
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
        path.unlink()


def _serve(listening: socket.socket) -> None:
    """Fork a command for each that connects; kill it when the other end is gone, tell its exit code when it ends."""
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    running: dict[socket.socket, int] = {}
    while True:
        for key, _ in waiting.select(0.005):
            if key.fileobj is listening:
                link, _ = listening.accept()
                pid = _accepted(link)
                if pid is None:
                    link.close()
                    continue
                running[link] = pid
                waiting.register(link, selectors.EVENT_READ)
            else:  # it says nothing more, so it has gone
                assert isinstance(key.fileobj, socket.socket)
                os.kill(running[key.fileobj], signal.SIGKILL)
        for link, pid in list(running.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                try:
                    link.send(str(os.waitstatus_to_exitcode(status)).encode())
                except OSError:
                    pass
                waiting.unregister(link)
                link.close()
                del running[link]


def _accepted(link: socket.socket) -> int | None:
    """The process of a command; None if who connected was killed before it said which."""
    text, ancillary, _, _ = link.recvmsg(65536, socket.CMSG_LEN(4))
    if not ancillary:
        return None
    descriptors = array.array("i", ancillary[0][2])
    folder, *words = text.decode().split("\0")
    pid = os.fork()
    if pid == 0:
        _be(words, Path(folder), descriptors[0], None)
    os.close(descriptors[0])
    return pid


def _be(words: Sequence[str], folder: Path, output: int, act: Callable[[], int] | None) -> None:
    """Be the command, and end."""
    code = 70
    try:
        for number in (1, 2):
            os.dup2(output, number)
        os.chdir(folder)
        torch.set_num_threads(1)
        sys.argv = ["lmrl", *words]
        code = main(words) if act is None else act()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
