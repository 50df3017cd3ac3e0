"""Lines that say how far a long piece of work is."""

import sys
from time import monotonic

from rich.console import Console

__all__ = ["LogLines"]


class LogLines:
    """Writes a line to standard error every half minute, where that is no terminal and would show no moving bar."""

    def __init__(self, console: Console, seconds: float = 30.0, *, quiet: bool = False) -> None:
        """Choose how often.

        Args:
            console: of the bar; on a terminal nothing is written.
            seconds: between two lines.
            quiet: write nothing at all.
        """
        self._writes = not (quiet or console.is_terminal)
        self._seconds = seconds
        self._written = monotonic()

    def say(self, text: str) -> None:
        """Write this, if the last line is long enough ago."""
        now = monotonic()
        if self._writes and now - self._written >= self._seconds:
            self._written = now
            print(text, file=sys.stderr, flush=True)
