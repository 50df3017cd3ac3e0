"""Checkpoints and model folders: writing, reading and exporting them, model cards, and the names of runs and zoo.

What needs torch is imported when it is first named.
"""

from typing import TYPE_CHECKING

from lmrl.utils.lazy import exports

__all__ = ["weights_of"]

if TYPE_CHECKING:
    from lmrl.checkpoints.reading import weights_of

__getattr__, __dir__ = exports(__name__, {"weights_of": "lmrl.checkpoints.reading"})
