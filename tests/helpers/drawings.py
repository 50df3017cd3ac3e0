"""What drawings for the terminal look like, and requests to draw."""

import io

from rich.console import Console

from lmrl.types import Request


def drawn(picture: object) -> str:
    """As it looks, without colours."""
    console = Console(file=io.StringIO(), width=100)
    console.print(picture)
    return "\n".join(line.rstrip() for line in console.file.getvalue().rstrip("\n").split("\n"))  # type: ignore[attr-defined]


def request(*texts: str, **info: object) -> Request:
    return Request(0, 0, texts[::2], texts[1::2], info=info)
