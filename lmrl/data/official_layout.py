"""What there is to know about a task's official file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lmrl.data.official_records import Game
from lmrl.envs.base import TextEnv
from lmrl.envs.task import Task
from lmrl.episode import Episode

__all__ = ["Layout"]

Records = Iterator[tuple[str, Any]]
"""Where each record stands in the file, and the record."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How to read a task's official file."""

    parse: Callable[[Any], Game]
    """From a record to what it says; a wrong one is a `UserError`."""
    complete: Callable[[Game, Task, TextEnv], Episode | None]
    """From there to an episode, or None where nothing can be kept."""
    list_begins: str
    """First characters, spaces aside, of a file that is one JSON list; otherwise each line is a record."""
    regroup: Callable[[Records], Records] = iter
    """From what the file holds to records of whole games."""
