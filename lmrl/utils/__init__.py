"""Files and locks, configuration, lazy imports, plugins, and processes of one machine or a cluster."""

from typing import TYPE_CHECKING

from lmrl.utils.lazy import exports

__all__ = ["threads_for"]

if TYPE_CHECKING:
    from lmrl.utils.threads import threads_for

# It needs torch, for which commands without a model do not wait.
__getattr__, __dir__ = exports(__name__, {"threads_for": "lmrl.utils.threads"})
