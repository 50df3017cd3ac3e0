"""Playing and watching: in the terminal, in the browser, and episodes on a page.

Values over words are imported when they are first asked for, so that playing without a model needs no torch.
"""

from typing import TYPE_CHECKING

from lmrl.utils.lazy import exports

__all__ = ["words_from"]

if TYPE_CHECKING:
    from lmrl.play.words import words_from

__getattr__, __dir__ = exports(__name__, {"words_from": "lmrl.play.words"})
