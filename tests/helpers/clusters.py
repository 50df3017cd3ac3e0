"""Functions that the processes of a cluster call in tests. A process makes them itself, so it finds them by name."""

import os
import signal
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from lmrl.errors import UserError


def squares() -> Callable[[int], tuple[int, int, int]]:
    """Return a function that gives a square, its process and how many it has done; the square of 0 takes longest."""
    done = list[int]()

    def square(number: int) -> tuple[int, int, int]:
        time.sleep(0.1 if number == 0 else 0.0)
        done.append(number)
        return number**2, os.getpid(), len(done)

    return square


def surroundings() -> Callable[[str], Any]:
    """Return a function that tells what a process of a cluster sees."""

    def look(name: str, *common: Any) -> Any:
        if name == "common":
            return common
        if name == "torch":
            return import_module("torch").get_num_threads()
        return os.getcwd() if name == "folder" else os.environ.get(name)

    return look


def refusing() -> Callable[[int], int]:
    """Raise an error, as for a policy that cannot be made."""
    raise UserError("there is no such policy")


class Dying:
    """Makes a function whose process dies at the number 3, once for each file in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self) -> Callable[[int], int]:
        def play(number: int) -> int:
            if number == 3:
                die_if_told(self.folder)
            return number

        return play


def die_if_told(folder: Path) -> None:
    for file in folder.glob("die-*"):
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
