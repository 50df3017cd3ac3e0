"""A command of ``lmrl``, and the commands that other packages add."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lmrl.commands.arguments import call
from lmrl.errors import UserError
from lmrl.utils.lazy import load
from lmrl.utils.plugins import COMMANDS, entry_points_of

__all__ = ["NOTHING_TO_TRAIN", "Verb", "added_verbs"]

NOTHING_TO_TRAIN = "nothing to train: lmrl fit --config configs/<task>/<algorithm>.yaml (see: lmrl fit --help)"
"""The error of ``lmrl fit`` without arguments, on the command line and in Python."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A command: where its function is (``module:function``) and its line in ``lmrl --help``."""

    target: str
    help: str
    raw: bool = False
    """The function takes the words after the verb as they are and returns an exit code."""
    page: str = ""
    """The output of ``--help`` alone, for a verb whose parser takes seconds to load."""
    without_words: str = ""
    """The error of a call without arguments, for the same reason."""

    def run(self, argv: Sequence[str], name: str) -> int:
        """Import the function and call it.

        Raises:
            UserError: there are no arguments, and the command needs some.
        """
        if self.without_words and not argv:
            raise UserError(self.without_words)
        if self.page and list(argv) in (["-h"], ["--help"]):
            print(self.page)
            return 0
        target = self.load()
        return int(target(argv)) if self.raw else call(target, argv, f"lmrl {name}")

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module, function = self.target.split(":")
        found: Callable[..., Any] = getattr(load(module), function)
        return found


def added_verbs() -> dict[str, Verb]:
    """Return the commands of the installed plugins, by their names.

    The value of an entry point of the group ``lmrl.commands`` is a mapping from names to `Verb`. The module that holds
    it is imported here, so it must be light; the functions are imported when they are called. Entry points to modules
    that do not exist are skipped: `lmrl.integrations` and `lmrl.contrib` may be left out of an installation.
    """
    verbs: dict[str, Verb] = {}
    for point in entry_points_of(COMMANDS):
        try:
            mapping: Mapping[str, Verb] = point.load()
        except ModuleNotFoundError as error:
            if error.name is not None and f"{point.module}.".startswith(f"{error.name}."):
                continue
            raise  # the module exists, but something that it imports does not
        verbs.update(mapping)
    return verbs
