"""The one exception that users meet: it says what to do next and is shown without a traceback."""

from collections.abc import Iterable

__all__ = ["UserError", "unknown"]


class UserError(ValueError):
    """A wrong argument, file or setting. The message names the argument, the rule and what came."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that is not among the known ones: ``unknown task 'x'; known: a, b``."""
    return UserError(f"unknown {kind} {name!r}; known: {', '.join(sorted(known))}")
