"""Answers of chat models that were paid for once, in a file that several processes may share."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from lmrl.errors import UserError

__all__ = ["ChatCache"]

_TABLE = "CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, model TEXT NOT NULL, answer TEXT NOT NULL)"
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
        """The answers that are there."""
        with self._opened() as file:
            rows = [file.execute("SELECT key, answer FROM answers WHERE key = ?", (key,)).fetchone() for key in keys]
        return dict(row for row in rows if row)

    def keep(self, answers: Mapping[str, str], model: str) -> None:
        """Write answers by key, all at once; one that is there already stays."""
        rows = [(key, model, answer) for key, answer in answers.items()]
        with self._opened() as file:
            # Told at once that it will write, nobody waits for another while holding a lock.
            file.execute("BEGIN IMMEDIATE")
            file.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", rows)
            file.execute("COMMIT")

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        # A connection for each use: they must not pass from one thread or process to another.
        try:
            with closing(sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)) as file:
                yield file
        except sqlite3.Error as error:
            raise UserError(f"cache must be an SQLite file that can be written, got {self.path}: {error}") from error
