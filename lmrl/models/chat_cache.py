"""Answers of chat models that were paid for once, in a file that several processes may share."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from lmrl.errors import UserError
from lmrl.models.chat_text import mended

__all__ = ["ChatCache"]

_TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT NOT NULL, answer TEXT NOT NULL)"
_KEEP = """\
INSERT INTO answers VALUES (?, ?, ?)
ON CONFLICT (key) DO UPDATE SET answer = excluded.answer WHERE typeof(answer) <> 'text' OR trim(answer) = ''"""
_FIND = "SELECT key, answer FROM answers WHERE key = ? AND typeof(answer) = 'text' AND trim(answer) <> ''"
_PATIENCE = 60.0  # seconds to wait for another process that writes


class ChatCache:
    """Answers by key. Any number of threads and processes may read and write one file.

    Args:
        path: of the SQLite file; missing folders are made.

    Raises:
        UserError: here and later, if the file cannot be written or is something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cache must be a file that can be written, got {path}: {error}") from error
        with self._opened() as file:
            file.execute(_TABLE)

    def find(self, keys: Iterable[str]) -> dict[str, str]:
        """The answers that are there. What is no text, or an empty one, is none: it will be asked for again."""
        with self._opened() as file:
            rows = [file.execute(_FIND, (key,)).fetchone() for key in keys]
        return {key: mended(answer) for key, answer in filter(None, rows)}

    def keep(self, answers: Mapping[str, str], model: str) -> None:
        """Write answers by key, all at once; one that is there already stays."""
        rows = [(key, model, answer) for key, answer in answers.items()]
        with self._opened() as file:
            # Told at once that it will write, nobody waits for another while holding a lock.
            file.execute("BEGIN IMMEDIATE")
            file.executemany(_KEEP, rows)
            file.execute("COMMIT")

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        # A connection for each use: they must not pass from one thread or process to another.
        try:
            with closing(sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)) as file:
                yield file
        except sqlite3.Error as error:
            raise UserError(f"cache must be an SQLite file that can be written, got {self.path}: {error}") from error
