"""Networks, their files, decoding, and chat models; the latter are imported when they are first named.

A model at an endpoint needs no torch, one on this machine does.
"""

from typing import TYPE_CHECKING

from lmrl.lazy import exports

__all__ = ["ChatClient", "LocalChat"]

if TYPE_CHECKING:
    from lmrl.chat.client import ChatClient
    from lmrl.chat.local import LocalChat


__getattr__, __dir__ = exports(__name__, {"ChatClient": "lmrl.chat.client", "LocalChat": "lmrl.chat.local"})
