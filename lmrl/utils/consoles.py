"""Where tables are printed."""

import os

from rich.console import Console

__all__ = ["table_console"]

_COLUMNS = 120  # columns of a file or pipe


def table_console() -> Console:
    """Return a console for tables on standard output.

    A terminal has its own width. A file or a pipe has none, for which Rich takes 80 columns and cuts wider tables; it
    gets 120, unless ``$COLUMNS`` says otherwise.
    """
    console = Console(highlight=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(highlight=False, width=_COLUMNS)
