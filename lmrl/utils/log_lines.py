"""Lines that say how far a long piece of work is."""

import sys
from time import monotonic

from rich.console import Console

__all__ = ["LogLines"]


class LogLines:
    """Writes a line to standard error every half minute, where no moving bar is shown."""

    def __init__(self, console: Console | None = None, seconds: float = 30.0, *, quiet: bool = False) -> None:
        """Choose how often.

        Args:
            console: console of the bar. A terminal shows the bar, so no lines are written there. None: there is no bar.
            seconds: seconds between two lines.
            quiet: write nothing at all.
        """
        has_bar = console is not None and console.is_terminal
        self._writes = not (quiet or has_bar)
        self._seconds = seconds
        self._written = monotonic()

    def say(self, text: str) -> None:
        """Write this, if the last line is long enough ago."""
        now = monotonic()
        if self._writes and now - self._written >= self._seconds:
            self._written = now
            print(text, file=sys.stderr, flush=True)
