"""The verbs of the command line: one module per verb, each a typed function whose docstring is its help."""

from typing import TYPE_CHECKING

from lmrl.utils.lazy import exports

__all__ = ["evaluate_file"]

if TYPE_CHECKING:
    from lmrl.commands.recorded import evaluate_file

# It needs torch, for which players without a model do not wait.
__getattr__, __dir__ = exports(__name__, {"evaluate_file": "lmrl.commands.recorded"})
