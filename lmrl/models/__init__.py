"""Networks, their files, decoding, and chat models; the latter are imported when they are first named.

A model at an endpoint needs no torch, one on this machine does.
"""

from typing import TYPE_CHECKING

from lmrl.lazy import exports

if TYPE_CHECKING:
    from lmrl.models.chat import ChatClient
    from lmrl.models.chat_local import LocalChat

__all__ = ["ChatClient", "LocalChat"]

__getattr__, __dir__ = exports(__name__, {"ChatClient": "lmrl.models.chat", "LocalChat": "lmrl.models.chat_local"})
